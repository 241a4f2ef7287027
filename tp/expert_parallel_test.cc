// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tp/expert_parallel.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/dtensor/row_exchange.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/layers/containers.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/layers/mixture_of_experts.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::tp {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kDim = 3;
constexpr int64_t kRows = 5;
constexpr int64_t kTime = 3;

// A gradient sums at most 15 tokens times 20 terms of at most 1, each with a
// relative error of 2^-24, through five consecutive products.
constexpr double kBound = 5 * 300 * 0x1p-24;

Tensor Batch(int64_t salt) {
  std::vector<float> values;
  for (int64_t i = 0; i < kRows * kTime * kDim; ++i) {
    values.push_back(static_cast<float>((i * 37 + salt * 11) % 101) / 50 - 1);
  }
  return FromValues<float>({kRows, kTime, kDim}, values);
}

nn::MixtureOfExpertsOptions Options(int64_t experts,
                                    std::optional<double> capacity) {
  return {.dim = kDim,
          .hidden = 4,
          .experts = experts,
          .choices = 2,
          .capacity_factor = capacity,
          .stddev = 0.5};
}

// Outputs and gradients of the whole batch, by name.
struct Outcome {
  std::vector<std::pair<std::string, std::vector<float>>> values;
  void Add(std::string name, const Tensor& t) {
    values.emplace_back(std::move(name), t.ToVector<float>());
  }
};

// Takes a gradient step and adds the gradients to the outcome.
void Descend(nn::Module& model, Outcome& outcome) {
  for (const auto& [name, parameter] : model.NamedParameters()) {
    outcome.Add(name, FullTensor(parameter->grad()));
    NoGrad no_grad;
    AddInPlace(parameter->data(), parameter->grad(), -0.5);
    parameter->set_grad(Tensor());
  }
}

// Returns a loss whose sum over the ranks is the batch's. The balance losses
// are averaged.
Tensor Loss(const Tensor& y, const Tensor& balance, int ranks = 1) {
  return Add(Sum(Square(y)), Div(balance, ranks));
}

absl::StatusOr<Outcome> OnOneRank(const nn::MixtureOfExpertsOptions& options) {
  nn::MixtureOfExperts model(options);
  model.NamedParameters();
  CH_RETURN_IF_ERROR(model.Materialize({.seed = 5}));
  Outcome outcome;
  for (int64_t step = 0; step < 3; ++step) {
    const TensorList out = model.Call({Batch(step)});
    outcome.Add("y", out[0]);
    outcome.Add("balance", out[1]);
    CH_RETURN_IF_ERROR(Backward(Loss(out[0], out[1])));
    Descend(model, outcome);
  }
  return outcome;
}

// Sums a plain tensor over the ranks, as data parallelism would.
Tensor SumOver(const Tensor& t, const DeviceMesh& mesh) {
  Layout sums = Layout::Replicated(mesh.layout(), t.ndim());
  const Layout whole = sums;
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    sums = sums.WithPartial(axis, ReduceOp::kSum);
  }
  NoGrad no_grad;
  return LocalTensor(
      Redistribute(FromLocal(t, mesh, sums, t.sizes(), whole), whole));
}

// Runs on distinct rows per rank, and concatenates the results.
absl::StatusOr<Outcome> OnOwnTokens(const nn::MixtureOfExpertsOptions& options,
                                    const DeviceMesh& ep) {
  nn::MixtureOfExperts model(options);
  CH_RETURN_IF_ERROR(ParallelizeModule(model, ep, {{"", ExpertParallel()}}));
  model.NamedParameters();
  CH_RETURN_IF_ERROR(model.Materialize({.seed = 5}));
  const Layout rows = Layout::Replicated(ep.layout(), 3).WithShard(0, 0);
  Outcome outcome;
  for (int64_t step = 0; step < 3; ++step) {
    const Tensor x = LocalTensor(DistributeTensor(Batch(step), ep, rows));
    const TensorList out = model.Call({x});
    outcome.Add("y", FullTensor(MakeDTensor(out[0].Detach(), ep, rows,
                                            {kRows, kTime, kDim})));
    outcome.Add("balance", Div(SumOver(out[1].Detach(), ep), ep.size()));
    CH_RETURN_IF_ERROR(Backward(Loss(out[0], out[1], ep.size())));
    model.router()->set_grad(SumOver(model.router()->grad(), ep));
    Descend(model, outcome);
  }
  return outcome;
}

enum class Given { kPlain, kReplicated, kSplit };

// Runs on all rows on every rank along the axis of the experts.
absl::StatusOr<Outcome> OnSharedTokens(
    const nn::MixtureOfExpertsOptions& options, const DeviceMesh& tp,
    Given given) {
  nn::MixtureOfExperts model(options);
  CH_RETURN_IF_ERROR(
      ParallelizeModule(model, tp, {{"", ExpertParallel({.shared = tp})}}));
  model.NamedParameters();
  CH_RETURN_IF_ERROR(model.Materialize({.seed = 5}));
  const Layout whole = Layout::Replicated(tp.layout(), 3);
  Outcome outcome;
  for (int64_t step = 0; step < 3; ++step) {
    Tensor x = Batch(step);
    if (given == Given::kReplicated) x = DistributeTensor(x, tp, whole);
    if (given == Given::kSplit) {
      x = DistributeTensor(x, tp, whole.WithShard(0, 1));
    }
    const TensorList out = model.Call({x});
    CH_EXPECT_EQ(out[0].is_distributed(), given != Given::kPlain);
    if (given != Given::kPlain) {
      CH_EXPECT_EQ(LayoutOf(out[0]), LayoutOf(x));
    }
    outcome.Add("y", FullTensor(out[0]));
    outcome.Add("balance", FullTensor(out[1]));
    CH_RETURN_IF_ERROR(Backward(Loss(out[0], out[1])));
    Descend(model, outcome);
  }
  return outcome;
}

void ExpectEqual(const Outcome& actual, const Outcome& expected) {
  CH_EXPECT_EQ(actual.values.size(), expected.values.size());
  for (size_t i = 0; i < expected.values.size(); ++i) {
    const auto& [name, values] = expected.values[i];
    CH_EXPECT_EQ(actual.values[i].first, name);
    CH_EXPECT_EQ(actual.values[i].second.size(), values.size());
    double worst = 0;
    for (size_t j = 0; j < values.size(); ++j) {
      worst = std::max(worst, std::abs(static_cast<double>(values[j]) -
                                       actual.values[i].second[j]) /
                                  std::max(1.0, std::abs(double{values[j]})));
    }
    CH_EXPECT_LE(worst, kBound) << name << " of step " << i / 6;
  }
}

struct Case {
  int ranks;
  int64_t experts;
  std::optional<double> capacity;
};

// Even and uneven shares of experts, and fewer experts than ranks.
constexpr Case kCases[] = {{2, 4, std::nullopt}, {2, 5, 1.0},
                           {3, 5, std::nullopt}, {4, 3, 1.25},
                           {3, 2, 0.5},          {1, 3, 1.0}};

TEST(ExpertParallelTest, MatchesOneRankWithShardedTokens) {
  for (const Case& c : kCases) {
    OnMesh({{"ep", c.ranks}}, [&](const DeviceMesh& ep) -> absl::Status {
      const auto options = Options(c.experts, c.capacity);
      CH_ASSIGN_OR_RETURN(const Outcome expected, OnOneRank(options));
      CH_ASSIGN_OR_RETURN(const Outcome actual, OnOwnTokens(options, ep));
      ExpectEqual(actual, expected);
      return absl::OkStatus();
    });
  }
}

TEST(ExpertParallelTest, MatchesOneRankWithReplicatedTokens) {
  for (const Case& c : kCases) {
    OnMesh({{"tp", c.ranks}}, [&](const DeviceMesh& tp) -> absl::Status {
      const auto options = Options(c.experts, c.capacity);
      CH_ASSIGN_OR_RETURN(const Outcome expected, OnOneRank(options));
      for (const Given given :
           {Given::kPlain, Given::kReplicated, Given::kSplit}) {
        CH_ASSIGN_OR_RETURN(const Outcome actual,
                            OnSharedTokens(options, tp, given));
        ExpectEqual(actual, expected);
      }
      return absl::OkStatus();
    });
  }
}

// Splits rows unevenly over one axis, and positions over another. Which choices
// are dropped depends on the order of rows, then positions.
TEST(ExpertParallelTest, OfRowsSplitByPositionTakesTheOrderOfTheBatch) {
  for (const double capacity : {0.2, 0.5, 0.8}) {
    OnMesh({{"dp", 2}, {"tp", 2}}, [=](const DeviceMesh& mesh) -> absl::Status {
      CH_ASSIGN_OR_RETURN(const DeviceMesh dp, mesh.Slice("dp"));
      CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
      CH_ASSIGN_OR_RETURN(const DeviceMesh joined,
                          mesh.Flatten({"dp", "tp"}, "all"));
      CH_ASSIGN_OR_RETURN(const DeviceMesh all, joined.Slice("all"));
      const auto options = Options(5, capacity);
      CH_ASSIGN_OR_RETURN(Outcome expected, OnOneRank(options));
      expected.values.resize(2);  // y and the balance loss of the first step.

      nn::MixtureOfExperts model(options);
      CH_RETURN_IF_ERROR(ParallelizeModule(
          model, tp, {{"", ExpertParallel({.batch = all, .shared = tp})}}));
      model.NamedParameters();
      CH_RETURN_IF_ERROR(model.Materialize({.seed = 5}));
      const Layout rows = Layout::Replicated(dp.layout(), 3).WithShard(0, 0);
      const Tensor x = LocalTensor(DistributeTensor(Batch(0), dp, rows));
      const TensorList out = model.Call({DistributeTensor(
          x, tp, Layout::Replicated(tp.layout(), 3).WithShard(0, 1))});
      Outcome outcome;
      outcome.Add("y", FullTensor(MakeDTensor(FullTensor(out[0]), dp, rows,
                                              {kRows, kTime, kDim})));
      outcome.Add("balance", Div(SumOver(FullTensor(out[1]), dp), dp.size()));
      ExpectEqual(outcome, expected);
      return absl::OkStatus();
    });
  }
}

TEST(ExpertParallelTest, IsTheSameInEveryRun) {
  std::vector<std::string> runs;
  for (const uint64_t seed : {0, 1, 2}) {
    std::string bits;
    OnMesh({{"ep", 3}},
           [&](const DeviceMesh& ep) -> absl::Status {
             CH_ASSIGN_OR_RETURN(const Outcome outcome,
                                 OnOwnTokens(Options(5, 1.0), ep));
             if (ep.world().rank() != 0) return absl::OkStatus();
             for (const auto& [name, values] : outcome.values) {
               bits.append(reinterpret_cast<const char*>(values.data()),
                           values.size() * sizeof(float));
             }
             return absl::OkStatus();
           },
           {.test = {.adversarial_seed = seed}});
    runs.push_back(OfFirstRank(bits));
  }
  EXPECT_FALSE(runs[0].empty());
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_EQ(runs[0], runs[2]);
}

TEST(ExpertParallelTest, MovesEachRowThereAndBack) {
  OnMesh({{"ep", 2}}, [](const DeviceMesh& ep) -> absl::Status {
    const auto options = Options(4, std::nullopt);
    nn::MixtureOfExperts model(options);
    CH_RETURN_IF_ERROR(ParallelizeModule(model, ep, {{"", ExpertParallel()}}));
    model.NamedParameters();
    CH_RETURN_IF_ERROR(model.Materialize({.seed = 5}));
    CH_ASSIGN_OR_RETURN(
        Communicator* const communicator,
        ep.communicator(0, RankContext::Current().current_stream().name()));
    const auto& stats =
        communicator->stats()
            .by_kind[static_cast<int>(CollectiveKind::kAllToAll)];
    Tensor x = Batch(*ep.index(0));
    x.set_requires_grad(true);
    const TensorList out = model.Call({x});
    CH_RETURN_IF_ERROR(Backward(Sum(out[0])));
    // The rows that this rank sends and receives, by the router's choices.
    const std::vector<int64_t> choices =
        TopK(MatMul(Reshape(x.Detach(), {kRows * kTime, kDim}),
                    model.router()->data().Detach(), false, true),
             2)
            .indices.ToVector<int64_t>();
    const int64_t first = 2 * *ep.index(0);
    int64_t gives = 0;
    for (const int64_t e : choices) gives += e < first || e >= first + 2;
    CH_ASSIGN_OR_RETURN(const std::vector<int64_t> all,
                        GatherNumbers({gives}, ep));
    const int64_t takes = all[static_cast<size_t>(1 - *ep.index(0))];
    CH_EXPECT_EQ(stats.bytes, 2 * (gives + takes) * kDim *
                                  static_cast<int64_t>(sizeof(float)));
    CH_EXPECT_EQ(stats.calls, 4);
    return absl::OkStatus();
  });
}

TEST(ExpertParallelTest, ReportsMismatches) {
  OnMesh({{"dp", 2}, {"ep", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh dp, mesh.Slice("dp"));
    CH_ASSIGN_OR_RETURN(const DeviceMesh ep, mesh.Slice("ep"));
    nn::Linear linear(2, 2);
    CH_EXPECT_THAT(
        std::string(
            ParallelizeModule(linear, ep, {{"", ExpertParallel()}}).message()),
        HasSubstr("fits nn::MixtureOfExperts; module \"\" is of another"));
    // The error comes before any change to the model, for either order of
    // plans.
    nn::Sequential three;
    for (int i = 0; i < 3; ++i) three.Add<nn::Linear>(2, 2);
    CH_EXPECT_FALSE(ParallelizeModule(three, ep,
                                      {{"0", ColwiseParallel()},
                                       {"1", ExpertParallel()},
                                       {"2", ColwiseParallel()}})
                        .ok());
    for (const nn::Parameter* parameter : three.Parameters()) {
      CH_EXPECT_FALSE(parameter->data().is_distributed());
    }
    nn::MixtureOfExperts model(Options(3, std::nullopt));
    CH_EXPECT_THAT(
        std::string(
            ParallelizeModule(model, ep, {{"", ExpertParallel({.batch = dp})}})
                .message()),
        HasSubstr("has experts"));
    CH_EXPECT_THAT(
        std::string(ParallelizeModule(model, ep,
                                      {{"", ExpertParallel({.shared = mesh})}})
                        .message()),
        HasSubstr("shared along one axis"));
    CH_ASSIGN_OR_RETURN(const DeviceMesh joined,
                        mesh.Flatten({"dp", "ep"}, "all"));
    CH_ASSIGN_OR_RETURN(const DeviceMesh all, joined.Slice("all"));
    CH_EXPECT_THAT(
        std::string(
            ParallelizeModule(
                model, ep, {{"", ExpertParallel({.batch = all, .shared = dp})}})
                .message()),
        HasSubstr("whose ranks do not follow each other"));
    return absl::OkStatus();
  });
}

// A projection for tensor parallelism, and experts.
class Projected final : public nn::Module {
 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return experts_.Call({up_.Forward(inputs[0])});
  }

 private:
  nn::Linear& up_ = Make<nn::Linear>("up", kDim, kDim);
  nn::MixtureOfExperts& experts_ =
      Make<nn::MixtureOfExperts>("experts", Options(3, std::nullopt));
};

absl::Status RunProjected(const ExpertParallelOptions& options,
                          const DeviceMesh& tp) {
  Projected model;
  CH_RETURN_IF_ERROR(ParallelizeModule(
      model, tp,
      {{"up",
        ColwiseParallel({.output = Replicate(), .use_local_output = true})},
       {"experts", ExpertParallel(options)}}));
  CH_RETURN_IF_ERROR(model.Materialize({.seed = 5}));
  return Backward(Sum(model.Call({Batch(0)})[0]));
}

TEST(ExpertParallelTest, NamesTheAxisOfPlainTokensThatRanksShare) {
  const auto run = [](bool says_it) {
    return StatusOfRanks(2, [=](World& world) -> absl::Status {
      CH_ASSIGN_OR_RETURN(const DeviceMesh tp,
                          InitDeviceMesh(world, {{"tp", 2}}));
      ExpertParallelOptions options;
      if (says_it) options.shared = tp;
      return RunProjected(options, tp);
    });
  };
  EXPECT_THAT(std::string(run(false).message()),
              HasSubstr("have the same tokens, because of tensor parallelism "
                        "of module up (Linear), but treat"));
  const absl::Status status = run(true);
  EXPECT_TRUE(status.ok()) << status;
}

TEST(ExpertParallelDeathTest, NamesTheAxisOfDistributedTokens) {
  EXPECT_DEATH(OnMesh({{"ep", 1}},
                      [](const DeviceMesh& ep) -> absl::Status {
                        nn::MixtureOfExperts model(Options(3, std::nullopt));
                        CH_RETURN_IF_ERROR(ParallelizeModule(
                            model, ep, {{"", ExpertParallel()}}));
                        model.NamedParameters();
                        CH_RETURN_IF_ERROR(model.Materialize({}));
                        model.Call({Replicated(Batch(0), ep)});
                        return absl::OkStatus();
                      }),
               "the tokens are distributed; ExpertParallelOptions::shared");
}

}  // namespace
}  // namespace crosshatch::tp
