// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/documents.h"

#include <vector>

#include "crosshatch/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;

TEST(DocumentsTest, TokensSeeTheirOwnDocument) {
  const Tensor keys = DocumentKeys({{2, 0, 1}, {}, {3}}, 4);
  EXPECT_EQ(keys.sizes(), Shape({3, 4, 2}));
  EXPECT_THAT(keys.ToVector<int32_t>(), ElementsAre(0, 2, 0, 2, 2, 3, 0, 0,  //
                                                    0, 0, 0, 0, 0, 0, 0, 0,  //
                                                    0, 3, 0, 3, 0, 3, 0, 0));
  EXPECT_EQ(DocumentKeys({}, 4).sizes(), Shape({0, 4, 2}));
}

TEST(DocumentsTest, KeysMayBePackedOtherwise) {
  EXPECT_THAT(DocumentKeys({{1, 2}}, {{5, 0}}, 3).ToVector<int32_t>(),
              ElementsAre(0, 5, 5, 5, 5, 5));
}

TEST(DocumentsTest, PositionsRestart) {
  EXPECT_THAT(DocumentPositions({{2, 0, 3}, {4}}, 6).ToVector<int32_t>(),
              ElementsAre(0, 1, 0, 1, 2, 0, 0, 1, 2, 3, 0, 0));
}

TEST(DocumentsTest, RefusesWhatDoesNotFit) {
  EXPECT_DEATH(DocumentKeys({{1}, {2, 2}}, 3),
               "row 1: document 1 of 2 tokens, where 1 are left of a row of 3");
  EXPECT_DEATH(DocumentPositions({{-1}}, 3), "document 0 of -1 tokens");
  EXPECT_DEATH(DocumentKeys({{1}}, {{1, 2}}, 3), "documents of queries");
  EXPECT_DEATH(DocumentKeys({{1}}, -1), "DocumentKeys: rows of -1 tokens");
  EXPECT_DEATH(DocumentPositions({}, -1), "Positions: rows of -1 tokens");
}

}  // namespace
}  // namespace crosshatch
