// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/batch_source.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::examples {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(BatchSourceTest, SaysWhatHasChangedAndOnlyThat) {
  const BatchSource before = {
      .tokens = 315, .hash = -7, .rows = 5, .row_size = 13};
  EXPECT_THAT(before.ChangesTo(before, 9), IsEmpty());
  BatchSource now = before;
  // Of other files, which differ in both, the size says enough.
  now.tokens = 320;
  now.hash = 8;
  EXPECT_THAT(before.ChangesTo(now, 9),
              ElementsAre("the checkpoint was written in training on 315 "
                          "tokens, and now there are 320: goes on at token 9"));
  now.tokens = 315;
  EXPECT_THAT(before.ChangesTo(now, 9),
              ElementsAre("the checkpoint was written in training on other "
                          "tokens, as many as these: goes on at token 9"));
  now.hash = -7;
  now.rows = 6;
  EXPECT_THAT(
      before.ChangesTo(now, 9),
      ElementsAre("the checkpoint was written in training on 5 rows of 13 "
                  "tokens a step: goes on with 6 rows of 13 tokens, as "
                  "--global_batch and --seq_len say"));
  now.rows = 5;
  now.row_size = 14;
  now.hash = 8;
  EXPECT_EQ(before.ChangesTo(now, 9).size(), 2u);
}

}  // namespace
}  // namespace crosshatch::examples
