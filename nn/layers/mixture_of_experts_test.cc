// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/layers/mixture_of_experts.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using Values = std::vector<double>;

constexpr int64_t kTokens = 7;
constexpr MixtureOfExpertsOptions kOptions = {
    .dim = 3, .hidden = 4, .experts = 5, .choices = 2, .stddev = 0.5};

// Sums have at most experts * hidden terms of at most 1, each with a relative
// error of 2^-24, through three consecutive products.
constexpr double kBound = 3 * 20 * 0x1p-24 * 20;

struct Reference {
  Values y;
  double balance = 0;
};

Values ValuesOf(const std::shared_ptr<Parameter>& parameter) {
  return parameter->data().ToVector<double>();
}

// Computes one token and one expert at a time, in double.
Reference Compute(const MixtureOfExperts& model, const Tensor& tokens) {
  const auto& options = model.options();
  const Values x = tokens.ToVector<double>();
  const Values router = ValuesOf(model.router());
  const Values gate = ValuesOf(model.gate_proj());
  const Values up = ValuesOf(model.up_proj());
  const Values down = ValuesOf(model.down_proj());
  const int64_t n = tokens.numel() / options.dim;
  const int64_t experts = options.experts;
  const int64_t room = options.capacity_factor.has_value()
                           ? static_cast<int64_t>(std::ceil(
                                 *options.capacity_factor *
                                 static_cast<double>(n * options.choices) /
                                 static_cast<double>(experts)))
                           : n;
  Reference result;
  result.y.assign(x.size(), 0);
  std::vector<int64_t> used(static_cast<size_t>(experts), 0);
  Values chosen(static_cast<size_t>(experts), 0);
  Values mean(static_cast<size_t>(experts), 0);
  for (int64_t t = 0; t < n; ++t) {
    const double* const row = x.data() + t * options.dim;
    Values p(static_cast<size_t>(experts), 0);
    double sum = 0;
    for (int64_t e = 0; e < experts; ++e) {
      double logit = 0;
      for (int64_t d = 0; d < options.dim; ++d) {
        logit += row[d] * router[static_cast<size_t>(e * options.dim + d)];
      }
      sum += p[static_cast<size_t>(e)] = std::exp(logit);
    }
    std::vector<size_t> order(static_cast<size_t>(experts));
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return p[a] > p[b]; });
    double weights = 0;
    for (int64_t j = 0; j < options.choices; ++j) {
      weights += p[order[static_cast<size_t>(j)]];
    }
    for (size_t e = 0; e < p.size(); ++e) mean[e] += p[e] / sum;
    for (int64_t j = 0; j < options.choices; ++j) {
      const size_t e = order[static_cast<size_t>(j)];
      chosen[e] += 1;
      if (used[e]++ >= room) continue;
      const double weight = p[e] / (options.normalize_weights ? weights : sum);
      for (int64_t h = 0; h < options.hidden; ++h) {
        double g = 0;
        double u = 0;
        for (int64_t d = 0; d < options.dim; ++d) {
          const auto at = static_cast<size_t>(
              (static_cast<int64_t>(e) * options.dim + d) * options.hidden + h);
          g += row[d] * gate[at];
          u += row[d] * up[at];
        }
        const double hidden = g / (1 + std::exp(-g)) * u;
        for (int64_t d = 0; d < options.dim; ++d) {
          result.y[static_cast<size_t>(t * options.dim + d)] +=
              weight * hidden *
              down[static_cast<size_t>(
                  (static_cast<int64_t>(e) * options.hidden + h) * options.dim +
                  d)];
        }
      }
    }
  }
  for (size_t e = 0; e < mean.size(); ++e) {
    result.balance += static_cast<double>(experts) * mean[e] /
                      static_cast<double>(n) * chosen[e] /
                      static_cast<double>(n * options.choices);
  }
  return result;
}

Tensor Tokens(const Shape& sizes) {
  std::vector<float> values;
  for (int64_t i = 0; i < NumElements(sizes); ++i) {
    values.push_back(static_cast<float>(i * 37 % 101) / 50 - 1);
  }
  return FromValues<float>(sizes, values);
}

std::unique_ptr<MixtureOfExperts> Made(const MixtureOfExpertsOptions& options) {
  auto model = std::make_unique<MixtureOfExperts>(options);
  model->NamedParameters();
  CH_CHECK_OK(model->Materialize({.seed = 3}));
  return model;
}

void ExpectNear(const Tensor& actual, const Values& expected,
                const std::string& what) {
  const Values values = actual.ToVector<double>();
  ASSERT_EQ(values.size(), expected.size()) << what;
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(values[i], expected[i], kBound) << what << " " << i;
  }
}

TEST(MixtureOfExpertsTest, CombinesTheExpertsOfEachToken) {
  std::vector<std::pair<std::string, MixtureOfExpertsOptions>> cases = {
      {"dropless", kOptions}};
  cases.push_back({"of their probabilities", kOptions});
  cases.back().second.normalize_weights = false;
  cases.push_back({"even capacity", kOptions});
  cases.back().second.capacity_factor = 1;
  cases.push_back({"hardly any capacity", kOptions});
  cases.back().second.capacity_factor = 0.1;
  cases.push_back({"one choice", kOptions});
  cases.back().second.choices = 1;
  cases.push_back({"all experts", kOptions});
  cases.back().second.choices = kOptions.experts;
  for (const auto& [name, options] : cases) {
    const auto model = Made(options);
    const Tensor x = Tokens({kTokens, options.dim});
    const TensorList outputs = model->Call({x});
    const Reference expected = Compute(*model, x);
    ExpectNear(outputs[0], expected.y, name);
    ExpectNear(outputs[1], {expected.balance}, name + ", balance");
  }
}

TEST(MixtureOfExpertsTest, KeepsTheShapeOfItsInput) {
  const auto model = Made(kOptions);
  const Tensor x = Tokens({2, 3, kOptions.dim});
  const Tensor y = model->Call({x})[0];
  EXPECT_EQ(y.sizes(), x.sizes());
  EXPECT_EQ(y.ToVector<float>(),
            model->Call({Reshape(x, {6, kOptions.dim})})[0].ToVector<float>());
  const TensorList none = model->Call({Tokens({0, kOptions.dim})});
  EXPECT_EQ(none[0].sizes(), Shape({0, kOptions.dim}));
  EXPECT_EQ(none[1].ToVector<float>(), std::vector<float>({0}));
}

// Compares with finite differences of the reference for the sum of y and the
// balance loss. A step of 1e-4 has an error of 1e-8, which is below the error
// of rounding y to float32.
TEST(MixtureOfExpertsTest, GradientsMatchTheOutputs) {
  auto options = kOptions;
  options.capacity_factor = 1;
  const auto model = Made(options);
  Tensor x = Tokens({kTokens, options.dim});
  x.set_requires_grad(true);
  const TensorList outputs = model->Call({x});
  ASSERT_TRUE(Backward(Add(Sum(outputs[0]), outputs[1])).ok());
  for (const auto& parameter : {model->router(), model->gate_proj(),
                                model->up_proj(), model->down_proj()}) {
    const std::vector<float> values = parameter->data().ToVector<float>();
    const Values gradient = parameter->grad().ToVector<double>();
    for (size_t i = 0; i < values.size(); i += 3) {
      constexpr float kStep = 1e-3f;
      double sums[2];
      for (const int side : {0, 1}) {
        std::vector<float> moved = values;
        moved[i] += side == 0 ? -kStep : kStep;
        parameter->set_data(
            FromValues<float>(parameter->data().sizes(), moved));
        const Reference at = Compute(*model, x.Detach());
        sums[side] =
            std::accumulate(at.y.begin(), at.y.end(), 0.0) + at.balance;
      }
      EXPECT_NEAR(gradient[i], (sums[1] - sums[0]) / (2 * kStep), 2e-4)
          << parameter->name() << " " << i;
    }
    parameter->set_data(FromValues<float>(parameter->data().sizes(), values));
  }
  EXPECT_TRUE(x.grad().defined());
}

TEST(MixtureOfExpertsTest, ComputesInTheDtypeOfItsWeights) {
  const auto model = Made(kOptions);
  const Tensor x = Tokens({kTokens, kOptions.dim});
  for (const auto& parameter : {model->router(), model->gate_proj(),
                                model->up_proj(), model->down_proj()}) {
    parameter->set_gathered(ToDType(parameter->data(), kBFloat16));
  }
  const Tensor y = model->Call({x})[0];
  EXPECT_EQ(y.dtype(), kFloat32);
  EXPECT_EQ(model->Call({ToDType(x, kBFloat16)})[0].dtype(), kBFloat16);
}

// A runtime in which each rank has its own rows.
class SplitsTheBatch final : public Attachment {
 public:
  bool splits_batch() const override { return true; }
};

TEST(MixtureOfExpertsDeathTest, RequiresTheBatchMeshIfItIsSplit) {
  const auto model = Made(kOptions);
  model->Attach("fsdp", std::make_shared<SplitsTheBatch>());
  EXPECT_DEATH(model->Call({Tokens({kTokens, kOptions.dim})}),
               "does not know the batch.* call MixtureOfExperts::Place");
}

TEST(MixtureOfExpertsDeathTest, ReportsMismatches) {
  EXPECT_DEATH(MixtureOfExperts({.dim = 3, .hidden = 4, .experts = 1}),
               "2 choices of 1 experts");
  EXPECT_DEATH(Made(kOptions)->Call({Ones({2, 4})}),
               "mixture_of_experts of f32\\[2, 4\\].* tokens of 3 features");
}

}  // namespace
}  // namespace crosshatch::nn
