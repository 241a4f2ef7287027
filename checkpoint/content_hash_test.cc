// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/content_hash.h"

#include <cstdint>
#include <cstring>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "crosshatch/checkpoint/box_runs.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/tensor/shape.h"
#include "gtest/gtest.h"

namespace crosshatch::checkpoint {
namespace {

/// Returns the elements of `box`, dense, of a tensor whose elements are 7 times
/// their indices.
std::vector<uint32_t> Part(ShapeView sizes, const Box& box) {
  std::vector<uint32_t> part;
  ForEachRun(sizes, box, [&](int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; ++i) {
      part.push_back(static_cast<uint32_t>(i * 7));
    }
  });
  return part;
}

uint64_t HashPart(ShapeView sizes, const Box& box) {
  return HashBox(Part(sizes, box).data(), 4, sizes, box);
}

TEST(ContentHashTest, PartsAddUpHoweverTheTensorIsCut) {
  const Shape sizes = {5, 3, 7};
  const uint64_t whole = HashPart(sizes, WholeBox(sizes));
  for (int dim = 0; dim < 3; ++dim) {
    for (int64_t cut = 0; cut <= sizes[dim]; ++cut) {
      Box before = WholeBox(sizes);
      Box after = before;
      before.sizes[dim] = cut;
      after.offsets[dim] = cut;
      after.sizes[dim] -= cut;
      EXPECT_EQ(HashPart(sizes, before) + HashPart(sizes, after), whole)
          << dim << " at " << cut;
    }
  }
}

TEST(ContentHashTest, EveryBitOfEveryElementCounts) {
  const std::vector<uint16_t> values(64, 0);
  std::set<uint64_t> hashes = {HashRun(values.data(), 2, 0, 64)};
  for (size_t i = 0; i < 64; ++i) {
    for (int bit = 0; bit < 16; ++bit) {
      std::vector<uint16_t> changed = values;
      changed[i] = static_cast<uint16_t>(1u << bit);
      hashes.insert(HashRun(changed.data(), 2, 0, 64));
    }
  }
  EXPECT_EQ(hashes.size(), 1 + 64 * 16u);
}

TEST(ContentHashTest, DependsOnTheOrderOfElements) {
  const std::vector<uint64_t> ab = {1, 2};
  const std::vector<uint64_t> ba = {2, 1};
  EXPECT_NE(HashRun(ab.data(), 8, 0, 2), HashRun(ba.data(), 8, 0, 2));
  // A misplaced piece and a missing piece change the hash, too.
  EXPECT_NE(HashRun(ab.data(), 8, 0, 2), HashRun(ab.data(), 8, 2, 2));
  const uint64_t zero = 0;
  EXPECT_NE(HashRun(&zero, 8, 0, 1), 0u);
}

TEST(ContentHashTest, IsTheSameOnEveryMachine) {
  const std::vector<uint8_t> bytes = {1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(HashToHex(HashRun(bytes.data(), 1, 0, 8)), "11e5abba2baafb50");
  EXPECT_EQ(HashToHex(HashRun(bytes.data(), 2, 0, 4)), "27305154cccc09cf");
  EXPECT_EQ(HashToHex(HashRun(bytes.data(), 4, 0, 2)), "ab990c490abdfc80");
  EXPECT_EQ(HashToHex(HashRun(bytes.data(), 8, 0, 1)), "ce6ea1f1cf2bfb63");
  EXPECT_EQ(HashToHex(HashText("crosshatch")), "b5708aef1ed37a9d");
}

TEST(ContentHashTest, TextsOfZerosDiffer) {
  EXPECT_NE(HashText(std::string(1, '\0')), HashText(std::string(2, '\0')));
  EXPECT_NE(HashText(""), HashText(std::string(1, '\0')));
}

TEST(ContentHashTest, HexIsReadBackAndNothingElse) {
  uint64_t hash = 0;
  EXPECT_TRUE(HashFromHex("0123456789abcdef", hash));
  EXPECT_EQ(hash, 0x0123456789abcdefu);
  EXPECT_EQ(HashToHex(hash), "0123456789abcdef");
  for (const char* wrong :
       {"", "0123456789abcde", "0123456789abcdeff", "0123456789ABCDEF",
        "0x23456789abcdef", " 123456789abcdef", "0123456789abcdeg"}) {
    EXPECT_FALSE(HashFromHex(wrong, hash)) << wrong;
  }
}

}  // namespace
}  // namespace crosshatch::checkpoint
