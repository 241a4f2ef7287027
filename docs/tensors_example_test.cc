// SPDX-License-Identifier: Apache-2.0

/// \file
/// The C++ excerpts of docs/tensors.md, which prints the text between [name]
/// and [/name].
/// [/name] is printed there.

#include <cstdint>

#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ch = crosshatch;

namespace {

using ::testing::ElementsAre;

TEST(TensorsExampleTest, ViewsAndGradients) {
  // [gradient]
  ch::Tensor w = ch::FromValues<float>({2, 2}, {1, 2, 3, 4});
  w.set_requires_grad(true);
  ch::Tensor x = ch::FromValues<float>({3, 2}, {1, 0, 0, 1, 1, 1});
  ch::Tensor y = ch::MatMul(x, ch::Transpose(w, 0, 1));  // a view of w
  absl::Status status = ch::Backward(ch::Sum(y * y));
  // w.grad() is f32[2, 2]; status has the first error of this rank, if any.
  // [/gradient]
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(w.grad().ToVector<float>(), ElementsAre(8, 10, 20, 22));
}

TEST(TensorsExampleTest, Streams) {
  const ch::Tensor x = ch::Full({1024}, 1);
  // [streams]
  ch::RankContext& rank = ch::RankContext::Current();
  ch::Stream& side = rank.SideStream("copy");
  side.Wait(rank.current_stream().Record());  // x is complete
  ch::Tensor y;
  {
    const ch::StreamScope scope(side);
    y = ch::Clone(x);
  }
  x.storage()->block().UsedOn(side);          // x may be freed now
  rank.current_stream().Wait(side.Record());  // y may be read now
  y.storage()->block().UsedOn(rank.current_stream());
  // [/streams]
  EXPECT_EQ(y.ToVector<float>()[1023], 1);
}

}  // namespace
