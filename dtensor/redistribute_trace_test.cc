// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribute_trace.h"

#include <gtest/gtest.h>

#include <string>

#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/dtensor_testutil.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

struct Counter final : EventSink {
  void Write(const LogEvent&) override { ++events; }
  int events = 0;
};

TEST(RedistributeTrace, ReadsWellAndPassesOn) {
  Counter counters[2];
  OnMesh({2},
         [](const DeviceMesh& mesh, Complaints& complaints) {
           const Layout r = Layout::Replicated(mesh.layout(), 1);
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
               if (inner.entries().size() != 1) complaints.Add("inner");
             }
             Exp(sums);
             Redistribute(Replicated(Numbers({4}, 1), mesh), r.WithShard(0, 0));
             text = trace.ToString();
           }
           Redistribute(rows, r);
           if (text !=
               "explicit  [S(0)] -> [R]  8 bytes\n"
               "implicit  [P(sum)] -> [R]  16 bytes  exp\n"
               "explicit  [R] -> [S(0)]  0 bytes\n") {
             complaints.Add(text);
           }
         },
         {.sinks = {&counters[0], &counters[1]}});
  // Five redistributions, their collectives and allocations.
  for (const Counter& counter : counters) EXPECT_GT(counter.events, 5);
}

}  // namespace
}  // namespace crosshatch
