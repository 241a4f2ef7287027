// SPDX-License-Identifier: Apache-2.0
// Checks that reductions, scans and sorts along a split dim exchange results of
// the ranks' parts, never the tensor. op_rules_test checks the values.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/dtensor_testutil.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr int64_t kRows = 3001;

// Bytes and collectives of this rank on axis 0 so far.
CommunicatorStats::Count Moved(const DeviceMesh& mesh) {
  CommunicatorStats::Count sum;
  auto communicator =
      mesh.communicator(0, RankContext::Current().current_stream().name());
  for (const auto& count : (*communicator)->stats().by_kind) {
    sum.calls += count.calls;
    sum.bytes += count.bytes;
  }
  return sum;
}

struct Exchange {
  const char* name;
  std::function<Tensor(const Tensor&)> run;
  // The number of collectives that make the result replicated, and of those of
  // its gradient.
  int64_t forward;
  int64_t backward;
};

TEST(Exchange, ExchangesOnlyResults) {
  const std::vector<Exchange> exchanges = {
      {"norm", [](const Tensor& x) { return Norm(x, 2, {0}); }, 1, 0},
      {"norm 3", [](const Tensor& x) { return Norm(x, 3, {0}); }, 1, 0},
      {"norm inf", [](const Tensor& x) { return Norm(x, kInf, {0}); }, 1, 2},
      {"var", [](const Tensor& x) { return Var(x, {0}); }, 2, 1},
      {"std", [](const Tensor& x) { return Std(x, {0}); }, 2, 1},
      {"logsumexp", [](const Tensor& x) { return LogSumExp(x, {0}); }, 2, 0},
      {"max", [](const Tensor& x) { return Max(x, {0}); }, 1, 2},
      {"prod", [](const Tensor& x) { return Prod(x, {0}); }, 1, 2},
      {"any", [](const Tensor& x) { return Any(x, {0}); }, 1, 0},
      {"argmax", [](const Tensor& x) { return ArgMax(x, 0); }, 2, 0},
      {"cumsum", [](const Tensor& x) { return CumSum(x, 0); }, 1, 1},
      {"topk", [](const Tensor& x) { return TopK(x, 5, 0).values; }, 2, 0},
  };
  OnMesh({3}, [&](const DeviceMesh& mesh) {
    const Layout rows = Rows(mesh);
    const Tensor dense = Fractions({kRows, 4}, 3);
    for (const Exchange& e : exchanges) {
      const Tensor x = Spread(dense, mesh, rows).set_requires_grad(true);
      const ForbidImplicitRedistribution forbid;
      CommunicatorStats::Count before = Moved(mesh);
      const auto check = [&](const char* when, int64_t calls) {
        const CommunicatorStats::Count now = Moved(mesh);
        // At most five rows of each rank, with 8 bytes per element.
        const int64_t most = calls * 3 * 5 * 4 * 8;
        CH_EXPECT_EQ(now.calls - before.calls, calls) << e.name << " " << when;
        CH_EXPECT_LE(now.bytes - before.bytes, most) << e.name << " " << when;
        before = now;
      };
      const Tensor result = ReducePartial(e.run(x));
      check("forward", e.forward);
      if (!result.requires_grad()) continue;
      const absl::Status status = Backward(ReducePartial(SumOfSquares(result)));
      CH_EXPECT_OK(status);
      // The loss takes one more if the result is split.
      const bool split = LayoutOf(result).is_sharded(0);
      check("backward", e.backward + (split ? 1 : 0));
      CH_EXPECT_EQ(LayoutOf(x.grad()), rows) << e.name;
    }
  });
}

TEST(Exchange, SortsMoveTheSplitToAnotherDim) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    const Layout rows = Rows(mesh);
    const Layout columns = Whole(mesh, 2).WithShard(0, 1);
    const Tensor dense = Fractions({64, 4}, 3);
    const int64_t before = Moved(mesh).bytes;
    const Tensor sorted = Sort(Spread(dense, mesh, rows), 0).values;
    CH_EXPECT_EQ(LayoutOf(sorted).ToString(), columns.ToString());
    // Half of the rank's elements.
    const int64_t moved = Moved(mesh).bytes - before;
    CH_EXPECT_EQ(moved, 64 * 4 / 4 * 4);
  });
}

TEST(Exchange, ExtremesOfPendingExtremesStayPending) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    const Layout whole = Whole(mesh, 2);
    const Tensor dense = Fractions({3, 4}, 3);
    struct {
      ReduceOp op;
      Tensor (*run)(const Tensor&, ShapeView, bool);
    } constexpr kCases[] = {{ReduceOp::kMax, Max}, {ReduceOp::kMin, Min}};
    for (const auto& c : kCases) {
      // The other rank's operands are further from the result.
      const double shift = c.op == ReduceOp::kMax ? -1 : 1;
      const Tensor local = *mesh.index(0) == 1 ? dense : Add(dense, shift);
      const Tensor x =
          MakeDTensor(local, mesh, whole.WithPartial(0, c.op), dense.sizes());
      const int64_t before = Moved(mesh).calls;
      const Tensor result = c.run(x, {0}, false);
      CH_EXPECT_EQ(Moved(mesh).calls, before);
      CH_EXPECT_EQ(Differs(result, c.run(dense, {0}, false)), "");
      // A different pending reduction must be performed first.
      CH_EXPECT_EQ(Differs(Sum(x), Sum(dense), 1e-6), "");
      CH_EXPECT_EQ(Differs(ArgMax(x, 1), ArgMax(dense, 1)), "");
    }
  });
}

// Equal largest numbers, and NaN, on several ranks.
TEST(Exchange, OrdersTiesAndNaNAcrossRanks) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::vector<float>> rows = {
      {1, 3, 0, 3, -1, -1, 3, 2},
      {1, nan, 0, 3, nan, -1, 3, 2},
      {nan, nan, nan, nan, nan, nan, nan, nan}};
  for (const std::vector<float>& row : rows) {
    OnMesh({5}, [&](const DeviceMesh& mesh) {
      const Layout split = Rows(mesh, 1);
      const Tensor dense = FromValues<float>({8}, row);
      const Tensor x = Spread(dense, mesh, split);
      CH_EXPECT_EQ(Differs(ArgMax(x, 0), ArgMax(dense, 0)), "");
      CH_EXPECT_EQ(Differs(ArgMin(x, 0, true), ArgMin(dense, 0, true)), "");
      for (int k : {1, 2}) {
        for (bool largest : {false, true}) {
          for (bool sorted : {false, true}) {
            const Sorted a = TopK(x, k, 0, largest, sorted);
            const Sorted b = TopK(dense, k, 0, largest, sorted);
            CH_EXPECT_EQ(Differs(a.values, b.values), "");
            CH_EXPECT_EQ(Differs(a.indices, b.indices), "");
          }
        }
      }
      const Sorted a = Sort(x);
      const Sorted b = Sort(dense);
      CH_EXPECT_EQ(Differs(a.values, b.values), "");
      CH_EXPECT_EQ(Differs(a.indices, b.indices), "");
    });
  }
}

}  // namespace
}  // namespace crosshatch
