// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribute_trace.h"

#include <gtest/gtest.h>

#include <string>

#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/dtensor_testutil.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch {
namespace {

struct Counter final : EventSink {
  void Write(const LogEvent&) override { ++events; }
  int events = 0;
};

TEST(RedistributeTrace, ReadsWellAndPassesOn) {
  CH_SKIP_ON(TestEngine::kMpi, "reads what other ranks wrote to its variables");
  Counter counters[2];
  OnMesh({2},
         [](const DeviceMesh& mesh) {
           const Layout r = Whole(mesh, 1);
           const Tensor rows = Spread(Numbers({4}, 1), mesh, r.WithShard(0, 0));
           const Tensor sums =
               Spread(Numbers({4}, 1), mesh, r.WithPartial(0, ReduceOp::kSum));
           Redistribute(rows, r);
           std::string text;
           {
             RedistributeTrace trace;
             {
               RedistributeTrace inner;
               Redistribute(rows, r);
               CH_EXPECT_EQ(inner.entries().size(), 1);
             }
             Exp(sums);
             Redistribute(Replicated(Numbers({4}, 1), mesh), r.WithShard(0, 0));
             text = trace.ToString();
           }
           Redistribute(rows, r);
           CH_EXPECT_EQ(text,
                        "explicit  [S(0)] -> [R]  8 bytes\n"
                        "implicit  [P(sum)] -> [R]  16 bytes  exp\n"
                        "explicit  [R] -> [S(0)]  0 bytes\n");
         },
         {.sinks = {&counters[0], &counters[1]}});
  // Five redistributions, their collectives and allocations.
  for (const Counter& counter : counters) EXPECT_GT(counter.events, 5);
}

// Redistributions within an op, and the gradient of an explicit one, are not
// explicit.
TEST(RedistributeTrace, PrintsRedistributionsOfOpsAndGradients) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    const Layout r = Whole(mesh, 1);
    const Layout rows = r.WithShard(0, 0);
    const Layout sums = r.WithPartial(0, ReduceOp::kSum);
    const Tensor pending = Spread(Numbers({4}, 1), mesh, sums);
    Tensor x = Spread(Numbers({4}, 1), mesh, rows);
    x.set_requires_grad(true);
    const RedistributeCounts before = GetRedistributeCounts();
    RedistributeTrace trace;
    ReducePartial(pending);
    // The gradient of a sum is replicated: it is sliced.
    absl::Status status = Backward(Sum(Redistribute(x, r)));
    Tensor local = Ones({4});
    local.set_requires_grad(true);
    const Tensor y = FromLocal(local, mesh, r, {4}, sums);
    status.Update(Backward(Sum(y)));
    CH_EXPECT_OK(status);
    CH_EXPECT_EQ(trace.ToString(),
                 "op        [P(sum)] -> [R]  16 bytes  reduce_partial\n"
                 "explicit  [S(0)] -> [R]  8 bytes\n"
                 "op        [R] -> [S(0)]  0 bytes  redistribute\n"
                 "op        [R] -> [P(sum)]  0 bytes  from_local\n");
    const RedistributeCounts& after = GetRedistributeCounts();
    CH_EXPECT_EQ(after.explicit_calls - before.explicit_calls, 1);
    CH_EXPECT_EQ(after.implicit_calls, before.implicit_calls);
    CH_EXPECT_EQ(after.op_calls - before.op_calls, 3);
  });
}

}  // namespace
}  // namespace crosshatch
