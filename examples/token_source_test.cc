// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/token_source.h"

#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::examples {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Write(const std::string& name, const std::string& content) {
  const std::string path = ::testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

TEST(TokenSourceTest, RowsFollowEachOtherAndGoRound) {
  const auto source = TokenSource::FromText({Write("text", "\1\2\3\4\5\6\7")});
  ASSERT_TRUE(source.ok()) << source.status();
  const TokenBatch first = source->Rows(0, /*global_batch=*/2, /*seq_len=*/3,
                                        /*begin=*/0, /*end=*/2);
  EXPECT_THAT(first.inputs, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(first.targets, ElementsAre(2, 3, 4, 5, 6, 7));
  const TokenBatch second = source->Rows(1, 2, 3, 1, 2);
  EXPECT_THAT(second.inputs, ElementsAre(3, 4, 5));
  EXPECT_THAT(source->Rows(1, 2, 3, 0, 1).inputs, ElementsAre(7, 1, 2));
  EXPECT_THAT(source->Rows(1, 2, 3, 1, 1).inputs, ElementsAre());
}

TEST(TokenSourceTest, BytesOfAllFilesAreTokens) {
  const auto source =
      TokenSource::FromText({Write("a", "\xff"), Write("b", "A")});
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT(source->Rows(0, 1, 2, 0, 1).inputs, ElementsAre(255, 65));
  EXPECT_EQ(source->max_token(), 255);
}

TEST(TokenSourceTest, TokenFilesAreLittleEndian) {
  const auto source = TokenSource::FromTokenFile(
      Write("t.bin", std::string("\x01\x02\0\1", 4)));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT(source->Rows(0, 1, 2, 0, 1).inputs, ElementsAre(513, 256));
}

TEST(TokenSourceTest, RefusesWhatIsNotThereEmptyOrOdd) {
  EXPECT_THAT(
      std::string(TokenSource::FromText({"/no/such"}).status().message()),
      HasSubstr("/no/such: No such file"));
  EXPECT_THAT(
      std::string(TokenSource::FromText({Write("e", "")}).status().message()),
      HasSubstr("is empty"));
  EXPECT_THAT(
      std::string(
          TokenSource::FromTokenFile(Write("o", "abc")).status().message()),
      HasSubstr("has 3 bytes"));
}

}  // namespace
}  // namespace crosshatch::examples
