// SPDX-License-Identifier: Apache-2.0

/// \file
/// Projections merged into one matrix, as in many models: q, k and v, or gate
/// and up. Under tensor parallelism each part stays split by heads for either
/// order of rows, and nothing is gathered.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/near.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

struct Case {
  const char* name;
  int64_t heads;
  int64_t kv_heads;
  int ranks;
  /// Rows of q, k and v alternate by head; otherwise they are three blocks.
  bool by_units;
};

constexpr int64_t kWidth = 2;  // Of a head.
constexpr int64_t kDim = 6;

class Attention final : public nn::Module {
 public:
  explicit Attention(const Case& c) : case_(c), group_(c.heads / c.kv_heads) {}
  const char* type_name() const override { return "Attention"; }

  static tp::ParallelPlan Plan(const Case& c) {
    const int64_t group = c.heads / c.kv_heads;
    return {{"qkv", tp::ColwiseParallel(
                        {.unit = c.by_units ? (group + 2) * kWidth : kWidth})},
            {"out", tp::RowwiseParallel({.unit = group * kWidth})}};
  }

  // Returns the layouts of the parts in the last forward.
  const std::vector<std::string>& layouts() const { return layouts_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    const Tensor merged = qkv_.Forward(inputs[0]);
    const int64_t q = case_.heads * kWidth;
    const int64_t kv = case_.kv_heads * kWidth;
    TensorList parts =
        case_.by_units ? SplitUnits(merged, {group_ * kWidth, kWidth, kWidth},
                                    /*dim=*/-1)
                       : Split(merged, {q, kv, kv}, /*dim=*/-1);
    layouts_.clear();
    for (Tensor& part : parts) {
      if (part.is_distributed()) {
        layouts_.push_back(LayoutOf(part).ToString());
      }
      part = View(part,
                  {part.size(0), part.size(1), part.size(2) / kWidth, kWidth});
    }
    const Tensor heads = CausalAttention(parts[0], parts[1], parts[2], 0.7);
    return {out_.Forward(View(heads, {heads.size(0), heads.size(1), q}))};
  }

 private:
  const Case case_;
  const int64_t group_;
  nn::Linear& qkv_ = Make<nn::Linear>(
      "qkv", {.in = kDim,
              .out = (case_.heads + 2 * case_.kv_heads) * kWidth,
              .bias = true,
              .stddev = 0.5});
  nn::Linear& out_ = Make<nn::Linear>(
      "out", {.in = case_.heads * kWidth, .out = kDim, .stddev = 0.5});
  std::vector<std::string> layouts_;
};

// Computes results and gradients. Counts the communication of the results
// before gathering them.
absl::Status StepOf(nn::Module& model, TensorList& results) {
  Tensor x = SmallIntegers({2, 5, kDim}, 1);
  x.set_requires_grad(true);
  const Tensor y = model.Forward(x);
  CH_RETURN_IF_ERROR(Backward(Sum(Tanh(y))));
  results = {y, x.grad()};
  for (nn::Parameter* p : model.Parameters()) results.push_back(p->grad());
  return absl::OkStatus();
}

Values WholeOf(const TensorList& results) {
  Values values;
  for (const Tensor& t : results) {
    values.push_back(FullTensor(t).ToVector<float>());
  }
  return values;
}

// Sums of at most some 60 products in different orders.
constexpr double kRoundings = 200;

int64_t Calls(const DeviceMesh& mesh, CollectiveKind kind) {
  int64_t calls = 0;
  for (const auto& communicator : mesh.communicators()) {
    calls += communicator->stats().by_kind[static_cast<int>(kind)].calls;
  }
  return calls;
}

class MergedProjectionTest : public ::testing::TestWithParam<Case> {};

TEST_P(MergedProjectionTest, StaysSplitByHeads) {
  const Case& c = GetParam();
  Attention one(c);
  ASSERT_TRUE(one.Materialize({.seed = 3}).ok());
  TensorList results;
  ASSERT_TRUE(StepOf(one, results).ok());
  const Values expected = WholeOf(results);
  OnMesh({{"tp", c.ranks}}, [&](const DeviceMesh& mesh) -> absl::Status {
    Attention model(c);
    CH_RETURN_IF_ERROR(tp::ParallelizeModule(model, mesh, Attention::Plan(c)));
    CH_RETURN_IF_ERROR(model.Materialize({.seed = 3}));
    TensorList results;
    CH_RETURN_IF_ERROR(StepOf(model, results));
    for (const std::string& layout : model.layouts()) {
      CH_EXPECT_EQ(layout.substr(0, 5), "[S(2)");
    }
    CH_EXPECT_EQ(model.layouts().size(), 3u);
    CH_EXPECT_EQ(Calls(mesh, CollectiveKind::kAllGather), 0);
    if (c.by_units) {
      CH_EXPECT_EQ(Calls(mesh, CollectiveKind::kAllToAll), 0);
    }
    ExpectNear(WholeOf(results), expected, kRoundings);
    return absl::OkStatus();
  });
}

INSTANTIATE_TEST_SUITE_P(
    All, MergedProjectionTest,
    ::testing::Values(Case{"in_a_row_on_2", 4, 4, 2, false},
                      Case{"in_a_row_on_3", 3, 3, 3, false},
                      Case{"in_a_row_uneven", 3, 3, 2, false},
                      Case{"in_a_row_fewer_than_ranks", 2, 2, 4, false},
                      Case{"in_a_row_grouped", 4, 2, 2, false},
                      Case{"by_units_on_2", 4, 4, 2, true},
                      Case{"by_units_uneven", 3, 3, 2, true},
                      Case{"by_units_fewer_than_ranks", 2, 2, 3, true},
                      Case{"by_units_grouped", 4, 2, 2, true}),
    [](const auto& info) { return info.param.name; });

// Gate and up, merged in units of which a rank has whole ones.
class GatedMlp final : public nn::Module {
 public:
  explicit GatedMlp(bool by_units) : by_units_(by_units) {}
  const char* type_name() const override { return "GatedMlp"; }

  static tp::ParallelPlan Plan(bool by_units) {
    return {
        {"gate_up", tp::ColwiseParallel({.unit = by_units ? 2 * kUnit : 1})},
        {"down", tp::RowwiseParallel({.unit = by_units ? kUnit : 1})}};
  }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    const Tensor merged = gate_up_.Forward(inputs[0]);
    const TensorList parts = by_units_ ? SplitUnits(merged, {kUnit, kUnit}, -1)
                                       : Chunk(merged, 2, -1);
    return {down_.Forward(SwiGlu(parts[0], parts[1]))};
  }

 private:
  static constexpr int64_t kUnit = 4;
  static constexpr int64_t kInner = 12;
  const bool by_units_;
  nn::Linear& gate_up_ = Make<nn::Linear>(
      "gate_up", {.in = kDim, .out = 2 * kInner, .stddev = 0.5});
  nn::Linear& down_ =
      Make<nn::Linear>("down", {.in = kInner, .out = kDim, .stddev = 0.5});
};

TEST(MergedGateTest, StaysSplit) {
  for (const bool by_units : {false, true}) {
    GatedMlp one(by_units);
    ASSERT_TRUE(one.Materialize({.seed = 3}).ok());
    TensorList results;
    ASSERT_TRUE(StepOf(one, results).ok());
    const Values expected = WholeOf(results);
    for (const int ranks : {2, 3}) {
      OnMesh({{"tp", ranks}}, [&](const DeviceMesh& mesh) -> absl::Status {
        GatedMlp model(by_units);
        CH_RETURN_IF_ERROR(
            tp::ParallelizeModule(model, mesh, GatedMlp::Plan(by_units)));
        CH_RETURN_IF_ERROR(model.Materialize({.seed = 3}));
        TensorList results;
        CH_RETURN_IF_ERROR(StepOf(model, results));
        CH_EXPECT_EQ(Calls(mesh, CollectiveKind::kAllGather), 0);
        if (by_units) {
          CH_EXPECT_EQ(Calls(mesh, CollectiveKind::kAllToAll), 0);
        }
        ExpectNear(WholeOf(results), expected, kRoundings);
        return absl::OkStatus();
      });
    }
  }
}

TEST(MergedProjectionWeightsTest, ChangeTheirOrder) {
  const Tensor q = SmallIntegers({6, 2}, 1);
  const Tensor k = SmallIntegers({3, 2}, 2);
  const Tensor v = SmallIntegers({3, 2}, 3);
  const Tensor merged = MergeUnits({q, k, v}, {2, 1, 1}, 0);
  EXPECT_EQ(merged.sizes(), (Shape{12, 2}));
  // The first head: two rows of q, then one each of k and v.
  EXPECT_EQ(Narrow(merged, 0, 0, 4).ToVector<float>(),
            Cat({Narrow(q, 0, 0, 2), Narrow(k, 0, 0, 1), Narrow(v, 0, 0, 1)}, 0)
                .ToVector<float>());
  const TensorList parts = SplitUnits(merged, {2, 1, 1}, 0);
  EXPECT_EQ(parts[0].ToVector<float>(), q.ToVector<float>());
  EXPECT_EQ(parts[1].ToVector<float>(), k.ToVector<float>());
  EXPECT_EQ(parts[2].ToVector<float>(), v.ToVector<float>());
}

}  // namespace
}  // namespace crosshatch
