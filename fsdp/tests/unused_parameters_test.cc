// SPDX-License-Identifier: Apache-2.0

/// \file
/// Settings::reduce_unused_params: ranks that use different parameters.

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/odd_models_testutil.h"
#include "crosshatch/fsdp/on_ranks_testutil.h"
#include "crosshatch/fsdp/sharded_module.h"
#include "crosshatch/fsdp/training_testutil.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

using ::testing::HasSubstr;

constexpr int kSteps = 3;

// The order of forwards and backwards in a step.
enum class Way { kPlain, kForwardsFirst, kEvaluatedBetween };

struct Case {
  Axes axes;
  BranchUse other;  // Where it is unused.
  Way way = Way::kPlain;
  int prefetch = 1;
  bool whole = true;  // Option set for the whole model, not just the branch.
  uint64_t seed = 0;

  int ranks() const { return MeshAxes(axes).ranks(); }
  // Every rank alternates between use and no use. In step 1 only rank 0 uses
  // it.
  BranchUse Use(int rank, int step) const {
    const bool uses = step == 1 ? rank == 0 : (rank + step) % 2 == 0;
    return uses ? BranchUse::kUsed : other;
  }
  std::string ToString() const {
    return absl::StrCat(ranks(), " ranks, ", axes.size(), " axes, other ",
                        static_cast<int>(other), ", way ",
                        static_cast<int>(way), ", prefetch ", prefetch,
                        ", whole ", whole, ", seed ", seed);
  }
};

Weights Dense(const Case& c) {
  BranchUse use = BranchUse::kUsed;
  Conditional model([&use] { return use; });
  for (int step = 0; step < kSteps; ++step) {
    for (int rank = 0; rank < c.ranks(); ++rank) {
      use = c.Use(rank, step);
      for (const int64_t salt : {5, 6}) {
        CH_CHECK_OK(
            Backward(Sum(model.Forward(BatchOf(rank, c.ranks(), salt)))));
      }
    }
    IntegerDescent(model);
  }
  return FullWeights(model);
}

absl::Status Train(const Case& c, const DeviceMesh& mesh, Conditional& model) {
  const int rank = mesh.world().rank();
  const auto loss = [&](int64_t salt) {
    return Sum(model.Forward(BatchOf(rank, c.ranks(), salt)));
  };
  if (c.way == Way::kForwardsFirst) {
    const Tensor first = loss(5);
    const Tensor second = loss(6);
    CH_RETURN_IF_ERROR(Backward(first));
    return Backward(second);
  }
  for (const int64_t salt : {5, 6}) {
    const Tensor value = loss(salt);
    if (c.way == Way::kEvaluatedBetween) {
      const NoGrad no_grad;
      loss(7);
    }
    CH_RETURN_IF_ERROR(Backward(value));
  }
  if (c.way == Way::kEvaluatedBetween) {
    const NoGrad no_grad;
    loss(8);
  }
  return absl::OkStatus();
}

void TrainsAsOneRank(const Case& c) {
  const Weights expected = Dense(c);
  std::vector<std::vector<std::string>> gathers(static_cast<size_t>(c.ranks()));
  OnRanks(
      c.axes,
      [&](const DeviceMesh& mesh, LineSink& log) -> absl::Status {
        const int rank = mesh.world().rank();
        int step = 0;
        Conditional model([&] { return c.Use(rank, step); });
        FullyShardOptions options = Summing();
        options.prefetch.forward = options.prefetch.backward = c.prefetch;
        CH_RETURN_IF_ERROR(FullyShard(model.b, mesh, options));
        CH_RETURN_IF_ERROR(FullyShard(model.a, mesh, options));
        CH_RETURN_IF_ERROR(FullyShard(model, mesh, options));
        nn::Module& unused = model.b;
        CH_RETURN_IF_ERROR(Configure(c.whole ? model : unused, [](Settings& s) {
          s.reduce_unused_params = true;
        }));
        for (; step < kSteps; ++step) {
          CH_RETURN_IF_ERROR(Train(c, mesh, model));
          IntegerDescent(model);
        }
        for (const std::string& line : log.Take()) {
          if (line.rfind("unshard ", 0) != 0) continue;
          gathers[static_cast<size_t>(rank)].push_back(line);
        }
        CH_EXPECT_EQ(FullWeights(model), expected);
        return absl::OkStatus();
      },
      c.seed);
  for (const auto& of_rank : gathers) EXPECT_EQ(of_rank, gathers[0]);
}

TEST(UnusedParametersTest, RanksMayUseDifferentParameters) {
  for (const BranchUse other : {BranchUse::kDropped, BranchUse::kSkipped}) {
    for (const Way way :
         {Way::kPlain, Way::kForwardsFirst, Way::kEvaluatedBetween}) {
      for (const int prefetch : {0, 1, 2}) {
        for (const bool whole : {true, false}) {
          const Case c{{{"fsdp", 2}}, other, way, prefetch, whole};
          SCOPED_TRACE(c.ToString());
          TrainsAsOneRank(c);
        }
      }
    }
  }
}

TEST(UnusedParametersTest, RanksMayDifferOnEveryMesh) {
  for (const Axes& axes : std::vector<Axes>{
           {{"fsdp", 3}}, {{"fsdp", 4}}, {{"replicate", 2}, {"fsdp", 2}}}) {
    for (const uint64_t seed : {0, 1, 2}) {
      const Case c{axes, BranchUse::kSkipped, Way::kPlain, 1, seed == 1, seed};
      SCOPED_TRACE(c.ToString());
      TrainsAsOneRank(c);
    }
  }
}

// Without reduce_unused_params ranks must use the same parameters.
struct Forgetful {
  Axes axes;
  BranchUse other;
  bool whole;  // Whether both branches form one group.
  int prefetch;
  int microbatches;  // Only the last one communicates.
  bool manual = false;
};

void PrintTo(const Forgetful& f, std::ostream* out) {
  const int ranks = MeshAxes(f.axes).ranks();
  *out << f.axes[0].name << ranks
       << (f.other == BranchUse::kDropped ? "Dropped" : "Skipped")
       << (f.whole ? "InOneGroup" : "Apart") << "Prefetch" << f.prefetch << "Of"
       << f.microbatches << (f.manual ? "Manual" : "");
}

std::vector<Forgetful> Forgetfuls() {
  std::vector<Forgetful> cases;
  for (const Axes& axes : std::vector<Axes>{{{"fsdp", 2}},
                                            {{"fsdp", 3}},
                                            {{"replicate", 2}, {"fsdp", 2}},
                                            {{"replicate", 2}, {"whole", 1}}}) {
    for (const BranchUse other : {BranchUse::kDropped, BranchUse::kSkipped}) {
      for (const int prefetch : {0, 1, 2}) {
        cases.push_back({axes, other, /*whole=*/false, prefetch, 1});
      }
      for (const int microbatches : {1, 2}) {
        cases.push_back({axes, other, /*whole=*/true, 1, microbatches});
        cases.push_back({axes, other, /*whole=*/true, 1, microbatches, true});
        cases.push_back({axes, other, /*whole=*/false, 1, microbatches, true});
      }
    }
  }
  return cases;
}

class ForgottenOptionTest : public ::testing::TestWithParam<Forgetful> {};

absl::Status TrainForgetfully(const Forgetful& f, const DeviceMesh& mesh,
                              Conditional& model) {
  FullyShardOptions options = Summing();
  options.prefetch.forward = options.prefetch.backward = f.prefetch;
  if (!f.whole) {
    CH_RETURN_IF_ERROR(FullyShard(model.a, mesh, options));
    CH_RETURN_IF_ERROR(FullyShard(model.b, mesh, options));
  }
  CH_RETURN_IF_ERROR(FullyShard(model, mesh, options));
  CH_ASSIGN_OR_RETURN(auto sharded, ShardedModule::Of(model));
  CH_RETURN_IF_ERROR(
      Configure(model, [&](Settings& s) { s.manual_finalization = f.manual; }));
  for (int step = 0; step < kSteps; ++step) {
    for (int i = 0; i < f.microbatches; ++i) {
      CH_RETURN_IF_ERROR(Configure(model, [&](Settings& s) {
        s.requires_gradient_sync = i + 1 == f.microbatches;
      }));
      Tensor x = BatchOf(0, 1, step);
      x.set_requires_grad(true);
      CH_RETURN_IF_ERROR(Backward(Sum(model.Forward(x))));
    }
    if (f.manual) sharded.FinalizeBackward().Wait();
    CH_RETURN_IF_ERROR(mesh.world().context().status());
    IntegerDescent(model);
  }
  return mesh.world().context().Synchronize();
}

// Only the last rank does not use the second branch.
TEST_P(ForgottenOptionTest, IsAnErrorNamingParameterAndRanksOnEveryRank) {
  const Forgetful& f = GetParam();
  const int ranks = MeshAxes(f.axes).ranks();
  std::vector<absl::Status> statuses(static_cast<size_t>(ranks));
  const absl::Status status =
      StatusOfRanks(ranks, [&](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                            InitDeviceMesh(world, f.axes));
        const bool uses = world.rank() + 1 < world.size();
        Conditional model([&] { return uses ? BranchUse::kUsed : f.other; });
        return statuses[static_cast<size_t>(world.rank())] =
                   TrainForgetfully(f, mesh, model);
      });
  EXPECT_FALSE(status.ok());
  for (const absl::Status& of_rank : statuses) {
    const std::string message(of_rank.message());
    EXPECT_THAT(message, HasSubstr("b.weight"));
    EXPECT_THAT(message, HasSubstr("Settings::reduce_unused_params"));
    EXPECT_THAT(message, HasSubstr(absl::StrCat("rank ", ranks - 1)));
  }
}

INSTANTIATE_TEST_SUITE_P(All, ForgottenOptionTest,
                         ::testing::ValuesIn(Forgetfuls()),
                         ::testing::PrintToStringParamName());

// Each replica uses the branch in one of two accumulated backwards.
TEST(UnusedParametersTest, ReplicasMayDifferBeforeTheLastBackward) {
  const auto use = [](int rank, int micro) {
    return rank == micro ? BranchUse::kUsed : BranchUse::kSkipped;
  };
  int rank = 0;
  int micro = 0;
  Conditional alone([&] { return use(rank, micro); });
  for (; rank < 2; ++rank) {
    for (micro = 0; micro < 2; ++micro) {
      CH_CHECK_OK(Backward(Sum(alone.Forward(BatchOf(rank, 2, micro)))));
    }
  }
  const Weights expected = FullGradients(alone);
  OnRanks({{"replicate", 2}, {"fsdp", 1}},
          [&](const DeviceMesh& mesh, LineSink&) -> absl::Status {
            const int here = mesh.world().rank();
            int step = 0;
            Conditional model([&] { return use(here, step); });
            CH_RETURN_IF_ERROR(FullyShard(model, mesh, Summing()));
            for (; step < 2; ++step) {
              CH_RETURN_IF_ERROR(Configure(model, [&](Settings& s) {
                s.requires_all_reduce = step == 1;
              }));
              CH_RETURN_IF_ERROR(
                  Backward(Sum(model.Forward(BatchOf(here, 2, step)))));
            }
            CH_EXPECT_EQ(FullGradients(model), expected);
            return absl::OkStatus();
          });
}

// The branch is prefetched in backward, which does not reach it.
TEST(UnusedParametersTest, ADroppedBranchIsReshardedAfterBackward) {
  OnRanks(
      {{"fsdp", 2}},
      [&](const DeviceMesh& mesh, LineSink& log) -> absl::Status {
        Conditional model([] { return BranchUse::kDropped; });
        CH_RETURN_IF_ERROR(FullyShard(model.b, mesh));
        CH_RETURN_IF_ERROR(FullyShard(model.a, mesh));
        CH_RETURN_IF_ERROR(FullyShard(model, mesh));
        for (int step = 0; step < 2; ++step) {
          log.Take();
          CH_RETURN_IF_ERROR(Backward(
              Sum(model.Forward(BatchOf(mesh.world().rank(), 2, step)))));
          const std::vector<std::string> lines = log.Take();
          // Once for forward, once for backward.
          CH_EXPECT_EQ(std::count(lines.begin(), lines.end(), "unshard b"), 2);
          CH_EXPECT_EQ(std::count(lines.begin(), lines.end(), "reshard b"), 2);
        }
        return absl::OkStatus();
      });
}

TEST(UnusedParametersTest, ParametersUnusedOnAllRanksHaveNoGradient) {
  for (const bool whole : {true, false}) {
    for (const BranchUse other : {BranchUse::kDropped, BranchUse::kSkipped}) {
      const auto train = [&](nn::Module& model) -> absl::Status {
        for (int step = 0; step < kSteps; ++step) {
          CH_RETURN_IF_ERROR(Backward(Sum(model.Forward(BatchOf(0, 1, step)))));
          IntegerDescent(model);
        }
        return absl::OkStatus();
      };
      Conditional alone([&] { return other; });
      CH_CHECK_OK(train(alone));
      const Weights expected = FullWeights(alone);
      OnRanks({{"replicate", 2}, {"fsdp", 2}},
              [&](const DeviceMesh& mesh, LineSink&) -> absl::Status {
                Conditional model([&] { return other; });
                FullyShardOptions options;  // Equal gradients.
                if (!whole) {
                  CH_RETURN_IF_ERROR(FullyShard(model.b, mesh, options));
                }
                CH_RETURN_IF_ERROR(FullyShard(model, mesh, options));
                CH_RETURN_IF_ERROR(train(model));
                CH_EXPECT_EQ(FullWeights(model), expected);
                CH_EXPECT_FALSE(model.b.weight()->grad().defined());
                return absl::OkStatus();
              });
    }
  }
}

}  // namespace
}  // namespace crosshatch::fsdp
