// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribute.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/dtensor_testutil.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/dtensor/redistribution/plan.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch {
namespace {

std::string PairName(const Layout& from, const Layout& to, ShapeView sizes) {
  return absl::StrCat(ToString(sizes), " ", from.ToString(), " -> ",
                      to.ToString());
}

// Values, bytes and gradients of every pair of layouts with pending sums.
// redistribute_local_fuzz_test has other reductions, units and cuts.
void CheckAllPairs(const std::vector<int>& shape,
                   const std::vector<Shape>& sizes_list) {
  std::mutex mutex;
  // For each pair: the plan's cost, and the most that a rank received.
  struct Moved {
    RedistributeCost planned;
    int64_t received = 0;
  };
  std::vector<Moved> moved;
  OnMesh(shape, [&](const DeviceMesh& mesh) {
    size_t pair = 0;
    for (const Shape& sizes : sizes_list) {
      const int ndim = static_cast<int>(sizes.size());
      const Tensor dense = Numbers(sizes, 1);
      const Tensor weight = Numbers(sizes, 2);
      const auto layouts = AllLayouts(mesh.layout(), ndim, /*sums=*/true);
      for (const Layout& from : layouts) {
        for (const Layout& to : layouts) {
          Tensor x = Spread(dense, mesh, from);
          x.set_requires_grad(true);
          const int64_t before = BytesReceived(mesh.world());
          const Tensor y = Redistribute(x, to);
          const int64_t received = BytesReceived(mesh.world()) - before;
          {
            const auto plan = PlanRedistribute(from, to, sizes, 4);
            std::lock_guard<std::mutex> lock(mutex);
            if (moved.size() <= pair) moved.resize(pair + 1);
            moved[pair].planned = plan->cost;
            moved[pair].received = std::max(moved[pair].received, received);
          }
          ++pair;
          CH_EXPECT_EQ(LayoutOf(y), to);
          std::string wrong = Differs(y, dense);
          if (wrong.empty()) {
            const Tensor loss = Sum(Mul(y, Replicated(weight, mesh)));
            const absl::Status status = Backward(loss);
            wrong = status.ok() ? Differs(x.grad(), weight) : status.ToString();
          }
          CH_EXPECT_EQ(wrong, "") << PairName(from, to, sizes);
        }
      }
    }
  });
  for (const Moved& pair : moved) {
    // In each of several steps another rank may receive the most.
    if (pair.planned.launches <= 1) {
      EXPECT_EQ(pair.planned.bytes, pair.received);
    } else {
      EXPECT_GE(pair.planned.bytes, pair.received);
    }
  }
}

TEST(Redistribute, IsRightBetweenAllLayoutsOfTwoRanks) {
  CheckAllPairs({2}, {{}, {1}, {5}, {0, 3}, {3, 4}, {1, 5}, {2, 3, 2}});
}

TEST(Redistribute, IsRightBetweenAllLayoutsOfThreeRanks) {
  CheckAllPairs({3}, {{2}, {7}, {4, 5}, {3, 1}, {0, 2}});
}

TEST(Redistribute, IsRightBetweenAllLayoutsOfTwoByTwoRanks) {
  CheckAllPairs({2, 2}, {{5}, {3, 5}});
}

TEST(Redistribute, ReadsAndWritesStridedShards) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    const Layout r = Whole(mesh, 2);
    const Tensor dense = Numbers({6, 8}, 4);
    // A slice of columns is a view with strides.
    const Tensor columns =
        Redistribute(Replicated(dense, mesh), r.WithShard(0, 1));
    CH_EXPECT_FALSE(LocalTensor(columns).is_contiguous());
    for (const Layout& to : AllLayouts(mesh.layout(), 2, true)) {
      CH_EXPECT_EQ(Differs(Redistribute(columns, to), dense), "");
    }
  });
}

TEST(Redistribute, IsTheTensorItselfWhereNothingChanges) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    const Layout rows = Rows(mesh, 1);
    const Tensor x = Spread(Numbers({5}, 1), mesh, rows);
    CH_EXPECT_TRUE(Redistribute(x, rows).SameAs(x));
    // Units with the same shards: another layout of the same memory.
    const Layout units = Layout(mesh.layout(), {{.axes = {0}, .unit = 3}});
    const Tensor same = Redistribute(x, units);
    CH_EXPECT_EQ(LocalTensor(same).raw_data(), LocalTensor(x).raw_data());
  });
}

TEST(Redistribute, CopiesNothingOnTheWay) {
  OnMesh({2, 2}, [](const DeviceMesh& mesh) {
    RankContext& context = mesh.world().context();
    const Tensor dense = Numbers({6, 8}, 4);
    for (const Layout& from : AllLayouts(mesh.layout(), 2, true)) {
      for (const Layout& to : AllLayouts(mesh.layout(), 2, true)) {
        const Tensor x = Spread(dense, mesh, from);
        const int64_t before = context.copied_bytes();
        Redistribute(x, to);
        CH_EXPECT_EQ(context.copied_bytes(), before);
      }
    }
  });
}

TEST(Redistribute, CountsTheCopyOfExpandedTensors) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    RankContext& context = mesh.world().context();
    // Two rows that share memory, which a collective must not read twice.
    const Tensor local = Expand(Numbers({1, 3}, 1), {2, 3});
    const Layout rows = Layout(mesh.layout(), {{.axes = {0}}, {}});
    const Layout whole = Layout(mesh.layout(), {{}, {}});
    const Tensor x = FromLocal(local, mesh, rows, rows);
    const int64_t before = context.copied_bytes();
    Redistribute(x, whole);
    CH_EXPECT_EQ(context.copied_bytes(), before + 24);
  });
}

// [P(sum),P(sum)] -> [S(0),R] of 64x64 floats: one all-reduce of the whole is
// the lightest, a reduce-scatter of quarters and a gather of halves the
// smallest.
constexpr int64_t kWhole = 64 * 64;

TEST(Redistribute, KeepsToABoundOnMemory) {
  OnMesh({2, 2}, [](const DeviceMesh& mesh) {
    const Tensor dense = Numbers({64, 64}, 1);
    const Layout r = Whole(mesh, 2);
    const Layout sums =
        r.WithPartial(0, ReduceOp::kSum).WithPartial(1, ReduceOp::kSum);
    const Tensor x = Spread(dense, mesh, sums);
    Allocator& allocator = RankContext::Current().allocator();
    // Returns the elements held at once, including those of `x`.
    const auto peak = [&](const RedistributeOptions& options) {
      const int64_t before = allocator.stats().current_total;
      allocator.ResetPeaks();
      const Tensor y = Redistribute(x, r.WithShard(0, 0), options);
      const int64_t most = allocator.stats().peak_total - before;
      CH_EXPECT_EQ(Differs(y, dense), "");
      return kWhole + most / static_cast<int64_t>(sizeof(float));
    };
    CH_EXPECT_EQ(peak({}), 2 * kWhole);
    const int64_t bound = kWhole + kWhole / 4 + kWhole / 2;
    for (int i = 0; i < 2; ++i) {
      CH_EXPECT_LE(peak({.max_elements = bound}), bound);
    }
    // The bound does not apply to the gradient, which is gathered.
    Tensor leaf = Spread(dense, mesh, sums);
    leaf.set_requires_grad(true);
    const absl::Status status = Backward(
        Sum(Mul(Redistribute(leaf, r.WithShard(0, 0), {.max_elements = bound}),
                Replicated(dense, mesh))));
    CH_EXPECT_OK(status);
    CH_EXPECT_EQ(Differs(leaf.grad(), dense), "");
  });
}

TEST(Redistribute, ABoundThatNoPlanKeepsToIsAnErrorOnEveryRank) {
  std::mutex mutex;
  int errors = 0;
  const absl::Status status =
      StatusOfRanks(4, [&](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                            InitDeviceMesh(world, {{"a", 4}}));
        const Layout r = Whole(mesh, 1);
        const Tensor x = Spread(Ones({8}), mesh, r.WithShard(0, 0));
        // 2 elements are here already, and 8 are to come.
        const Tensor y = Redistribute(x, r, {.max_elements = 9});
        CH_EXPECT_EQ(LayoutOf(y), r);
        const absl::Status found = world.context().Synchronize();
        const std::lock_guard<std::mutex> lock(mutex);
        errors += absl::StrContains(found.message(),
                                    "no plan keeps within 9 elements");
        return found;
      });
  EXPECT_EQ(errors, 4);
  EXPECT_FALSE(status.ok());
}

TEST(Redistribute, WeighsByTheCallersModelForwardAndBack) {
  OnMesh({2, 2}, [](const DeviceMesh& mesh) {
    const Tensor dense = Numbers({16, 3}, 1);
    const Layout r = Whole(mesh, 2);
    const Layout rows = r.WithShard(0, 0).WithShard(1, 0);
    Tensor x = Spread(dense, mesh, rows);
    x.set_requires_grad(true);
    const auto launches = [] { return GetRedistributeCounts().cost.launches; };
    const RedistributeOptions by_axis = {
        .cost = RedistributeCostModel{.bytes_per_launch = 1,
                                      .weight_of_byte_by_axis = {20, 1}}};
    for (const auto& [options, at_once] :
         {std::pair{RedistributeOptions(), true}, {by_axis, false}}) {
      int64_t before = launches();
      const Tensor y = Redistribute(x, r, options);
      CH_EXPECT_EQ(launches() - before == 1, at_once);
      CH_EXPECT_EQ(Differs(y, dense), "");
      // The incoming sum is scattered by the same model.
      const Tensor part = ToLocal(
          y, r.WithPartial(0, ReduceOp::kSum).WithPartial(1, ReduceOp::kSum));
      before = launches();
      const absl::Status status = Backward(Sum(part));
      CH_EXPECT_OK(status);
      CH_EXPECT_EQ(launches() - before == 1, at_once);
    }
    CH_EXPECT_EQ(Differs(x.grad(), Full({16, 3}, 8)), "");
  });
}

class Recorder final : public EventSink {
 public:
  void Write(const LogEvent& event) override {
    if (event.kind != EventKind::kRedistribute) return;
    lines.push_back(absl::StrCat(event.what, " ", *event.subject, " ",
                                 event.where == nullptr ? "" : *event.where,
                                 " ", event.bytes));
  }
  std::vector<std::string> lines;
};

TEST(Redistribute, IsCountedAndLogged) {
  Recorder recorders[2];
  OnMesh({2},
         [](const DeviceMesh& mesh) {
           const Layout r = Whole(mesh, 1);
           const Tensor x = Spread(Numbers({4}, 1), mesh, r.WithShard(0, 0));
           const RedistributeCounts before = GetRedistributeCounts();
           Redistribute(x, r);
           const Tensor sums =
               Spread(Numbers({4}, 1), mesh, r.WithPartial(0, ReduceOp::kSum));
           Exp(sums);
           const RedistributeCounts& after = GetRedistributeCounts();
           CH_EXPECT_EQ(after.explicit_calls - before.explicit_calls, 1);
           CH_EXPECT_EQ(after.implicit_calls - before.implicit_calls, 1);
           CH_EXPECT_EQ(after.cost.launches - before.cost.launches, 2);
           CH_EXPECT_EQ(after.cost.bytes - before.cost.bytes, 8 + 16);
         },
         {.sinks = {&recorders[0], &recorders[1]}});
  for (const Recorder& recorder : recorders) {
    ASSERT_GE(recorder.lines.size(), 2u);
    EXPECT_EQ(recorder.lines[recorder.lines.size() - 2],
              "explicit [S(0)] -> [R]  8");
    EXPECT_EQ(recorder.lines.back(), "implicit [P(sum)] -> [R] exp 16");
  }
}

// A sum that is reduced before Exp.
Tensor HiddenSum(const DeviceMesh& mesh) {
  return Exp(Spread(Numbers({4}, 1), mesh, Sums(mesh, 1)));
}

TEST(Redistribute, ScopesOfImplicitOnesNest) {
  using Mode = ImplicitRedistribution;
  OnMesh({2}, [](const DeviceMesh& mesh) {
    const Layout rows = Rows(mesh, 1);
    const Tensor x = Spread(Numbers({4}, 1), mesh, rows);
    const Tensor whole = Replicated(Numbers({4}, 2), mesh);
    const ForbidImplicitRedistribution forbid;
    // Explicit, or without communication: `whole` is sliced in place.
    Redistribute(x, Whole(mesh, 1));
    CH_EXPECT_EQ(Differs(Add(x, whole), Add(Numbers({4}, 1), Numbers({4}, 2))),
                 "");
    {
      const ImplicitRedistributionScope allow(Mode::kAllow);
      HiddenSum(mesh);
      const ImplicitRedistributionScope warn(Mode::kWarn);
      HiddenSum(mesh);
    }
  });
}

TEST(Redistribute, WarnsOnceForEachOpAndPlan) {
  testing::internal::CaptureStderr();
  OnMesh({2}, [](const DeviceMesh& mesh) {
    const ImplicitRedistributionScope warn(ImplicitRedistribution::kWarn);
    for (int i = 0; i < 3; ++i) HiddenSum(mesh);
  });
  const std::string text = testing::internal::GetCapturedStderr();
  for (const char* rank : {"rank 0: exp: an input is redistributed: [P(sum)]",
                           "rank 1: exp: an input is redistributed: "}) {
    const size_t at = text.find(rank);
    EXPECT_NE(at, std::string::npos) << text;
    EXPECT_EQ(text.find(rank, at + 1), std::string::npos) << text;
  }
}

TEST(RedistributeDeathTest, TheInnermostScopeCounts) {
  ExpectDeathOn({2}, "exp: an input would be redistributed.*all_reduce",
                [](const DeviceMesh& mesh) {
                  const ForbidImplicitRedistribution forbid;
                  {
                    const ImplicitRedistributionScope allow(
                        ImplicitRedistribution::kAllow);
                    HiddenSum(mesh);
                  }
                  HiddenSum(mesh);
                });
}

}  // namespace
}  // namespace crosshatch
