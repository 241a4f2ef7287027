// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/testing/batch.h"

#include <cstdint>
#include <set>
#include <vector>

#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/parts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::AnyOf;
using ::testing::Each;

TEST(Batch, IsOfSmallIntegers) {
  for (int64_t salt = 0; salt < 20; ++salt) {
    EXPECT_THAT(SmallIntegers({7, 3}, salt).ToVector<float>(),
                Each(AnyOf(-1.0f, 0.0f, 1.0f)));
  }
  EXPECT_NE(SmallIntegers({7}, 0).ToVector<float>(),
            SmallIntegers({7}, 1).ToVector<float>());
}

TEST(Batch, IsSharedAmongTheRanks) {
  for (const int64_t dim : {1, 3, 5}) {
    const std::vector<float> whole = BatchOf(0, 1, 2, dim).ToVector<float>();
    for (int size = 1; size <= 7; ++size) {
      std::vector<float> joined;
      for (int rank = 0; rank < size; ++rank) {
        const Tensor rows = BatchOf(rank, size, 2, dim);
        EXPECT_EQ(rows.size(0), Part(5, size, rank));
        const std::vector<float> values = rows.ToVector<float>();
        joined.insert(joined.end(), values.begin(), values.end());
      }
      EXPECT_EQ(joined, whole) << size;
    }
  }
}

TEST(Batch, HasRowsThatDiffer) {
  std::set<std::vector<float>> rows;
  for (int rank = 0; rank < 5; ++rank) {
    rows.insert(BatchOf(rank, 5, 0).ToVector<float>());
  }
  EXPECT_GT(rows.size(), 2u);
}

TEST(Parts, MakeUpTheWhole) {
  for (const int64_t n : {0, 1, 5, 12}) {
    for (int64_t k = 1; k < 8; ++k) {
      int64_t sum = 0;
      int64_t received = 0;
      for (int64_t i = 0; i < k; ++i) {
        sum += Part(n, k, i);
        received += AllReduced(n, k, i);
      }
      EXPECT_EQ(sum, n) << k;
      // Each element goes to one rank from all others, and back to them.
      EXPECT_EQ(received, 2 * (k - 1) * n) << k;
    }
  }
}

}  // namespace
}  // namespace crosshatch
