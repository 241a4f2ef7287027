// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/page/step_trace.h"

#include <algorithm>
#include <string>

#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "gtest/gtest.h"

namespace crosshatch::examples {
namespace {

TEST(StepTracerTest, HasTheOpsAndTheMemoryOfTheRank) {
  RankContext& context = RankContext::Current();
  ASSERT_EQ(context.sink(), nullptr);
  const Tensor kept = Ones({16, 16});
  TracedStep step;
  {
    StepTracer tracer(context);
    Tensor product = MatMul(kept, kept);
    product = Add(product, kept);
    // The last event is a release.
    product = Tensor();
    ASSERT_TRUE(context.Synchronize().ok());
    step = tracer.Finish(7);
  }
  EXPECT_EQ(context.sink(), nullptr);
  EXPECT_EQ(step.step, 7);
  for (const char* op : {"matmul", "add"}) {
    EXPECT_TRUE(std::any_of(step.spans.begin(), step.spans.end(),
                            [&](const Span& span) {
                              return span.what == "op" && span.subject == op &&
                                     span.end_us >= span.begin_us;
                            }))
        << op;
  }
  const auto activations = static_cast<size_t>(MemoryClass::kActivation);
  int64_t most = 0;
  for (const MemorySample& sample : step.memory) {
    most = std::max(most, sample.bytes[activations]);
  }
  // The product and the sum, in addition to the initial memory.
  EXPECT_EQ(most - step.memory.front().bytes[activations], 2 * 16 * 16 * 4);
  EXPECT_LE(step.memory.back().us, step.us);
  // The release before the end appears when it happens, not at the next event.
  ASSERT_GE(step.memory.size(), 3u);
  EXPECT_EQ(step.memory[step.memory.size() - 2].bytes[activations],
            step.memory.front().bytes[activations]);
}

TEST(StepTracerTest, OneThatIsNotFinishedLeavesTheSinkAsItWas) {
  RankContext& context = RankContext::Current();
  { const StepTracer tracer(context); }
  EXPECT_EQ(context.sink(), nullptr);
  EXPECT_TRUE(Ones({2}).defined());
}

}  // namespace
}  // namespace crosshatch::examples
