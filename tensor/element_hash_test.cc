// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/element_hash.h"

#include <cstdint>

#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

TEST(ElementHashTest, IsOfTheElementsInTheirOrder) {
  const Tensor a = FromValues<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  const std::string hash = HashOfElements(a);
  EXPECT_NE(hash, "");
  EXPECT_EQ(HashOfElements(FromValues<float>({6}, {1, 2, 3, 4, 5, 6})), hash);
  EXPECT_NE(HashOfElements(FromValues<float>({6}, {1, 2, 3, 4, 6, 5})), hash);
  // The hash follows strides, not memory order.
  EXPECT_EQ(HashOfElements(
                Permute(FromValues<float>({3, 2}, {1, 4, 2, 5, 3, 6}), {1, 0})),
            hash);
  EXPECT_NE(HashOfElements(FromValues<float>({2}, {0, 0})),
            HashOfElements(FromValues<float>({3}, {0, 0, 0})));
}

// A tensor larger than one read, including its last element.
TEST(ElementHashTest, ReadsAll) {
  constexpr int64_t kMany = (int64_t{16} << 20) / 4 + 1;
  const Tensor many = Zeros({kMany}, kFloat32);
  const std::string hash = HashOfElements(many);
  AddInPlace(Slice(many, 0, kMany - 1, kMany), FromValues<float>({1}, {1}));
  EXPECT_NE(HashOfElements(many), hash);
}

TEST(ElementHashTest, OfNothing) {
  EXPECT_NE(HashOfElements(Empty({0}, kFloat32)), "");
  RankContext context({.dry_run = true});
  const RankContextScope scope(&context);
  EXPECT_EQ(HashOfElements(Ones({4})), "");
}

}  // namespace
}  // namespace crosshatch
