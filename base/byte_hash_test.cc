// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/byte_hash.h"

#include <cstddef>
#include <set>
#include <string>

#include "gtest/gtest.h"

namespace crosshatch {
namespace {

uint64_t HashOf(const std::string& text) {
  return HashBytes(0, text.data(), static_cast<int64_t>(text.size()));
}

TEST(ByteHashTest, EveryBitOfEveryByteCounts) {
  const std::string text = "nineteen bytes long";
  std::set<uint64_t> hashes = {HashOf(text)};
  for (size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string other = text;
      other[i] = static_cast<char>(other[i] ^ (1 << bit));
      hashes.insert(HashOf(other));
    }
  }
  EXPECT_EQ(hashes.size(), 1 + 8 * text.size());
}

TEST(ByteHashTest, GoesOnAfterWholeWords) {
  const std::string text = "nineteen bytes long";
  for (const size_t first : {size_t{0}, size_t{8}, size_t{16}}) {
    EXPECT_EQ(HashBytes(HashOf(text.substr(0, first)), text.data() + first,
                        static_cast<int64_t>(text.size() - first)),
              HashOf(text))
        << first;
  }
  EXPECT_NE(HashBytes(1, text.data(), 19), HashOf(text));
  EXPECT_EQ(HashBytes(5, nullptr, 0), 5u);
}

}  // namespace
}  // namespace crosshatch
