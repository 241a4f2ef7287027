// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/token_source.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
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
  const TokenBatch first = source->Rows(/*position=*/0, /*seq_len=*/3,
                                        /*begin=*/0, /*end=*/2);
  EXPECT_THAT(first.inputs, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(first.targets, ElementsAre(2, 3, 4, 5, 6, 7));
  const int64_t next = source->PositionAfter(0, 3, 2);
  EXPECT_EQ(next, 6);
  EXPECT_THAT(source->Rows(next, 3, 1, 2).inputs, ElementsAre(3, 4, 5));
  EXPECT_THAT(source->Rows(next, 3, 0, 1).inputs, ElementsAre(7, 1, 2));
  EXPECT_THAT(source->Rows(next, 3, 1, 1).inputs, ElementsAre());
  // 2^62 rows of 2^40 tokens: 2^102 is 1 modulo 7, as 2^3 is.
  EXPECT_EQ(source->PositionAfter(4, int64_t{1} << 40, int64_t{1} << 62), 5);
}

TEST(TokenSourceTest, APipeIsReadToItsEndAndNotWaitedForForEver) {
  const std::string path = ::testing::TempDir() + "/pipe";
  unlink(path.c_str());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const auto silent =
      TokenSource::FromText({path}, /*timeout=*/absl::Milliseconds(30));
  EXPECT_EQ(silent.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(silent.status().message()), HasSubstr(path));
  // A writer that pauses.
  std::thread writer([&] {
    std::ofstream out(path);
    out << "ab" << std::flush;
    absl::SleepFor(absl::Milliseconds(50));
    out << "c";
  });
  const auto source = TokenSource::FromText({path});
  writer.join();
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(source->size(), 3);
}

TEST(TokenSourceTest, BytesOfAllFilesAreTokens) {
  const auto source =
      TokenSource::FromText({Write("a", "\xff"), Write("b", "A")});
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT(source->Rows(0, 2, 0, 1).inputs, ElementsAre(255, 65));
  EXPECT_EQ(source->max_token(), 255);
}

TEST(TokenSourceTest, TokenFilesAreLittleEndian) {
  const auto source = TokenSource::FromTokenFile(
      Write("t.bin", std::string("\x01\x02\0\1", 4)));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT(source->Rows(0, 2, 0, 1).inputs, ElementsAre(513, 256));
}

TEST(TokenSourceTest, DocumentsEndWithAToken) {
  auto source = TokenSource::FromText({Write("docs", "ab.c..de")});
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_TRUE(source->Rows(0, 4, 0, 2).documents.empty());
  EXPECT_EQ(source->CountTargets(0, 8), 8);
  source->EndDocumentsAt('.');
  const TokenBatch batch = source->Rows(0, 4, 0, 2);
  EXPECT_THAT(batch.documents,
              ElementsAre(ElementsAre(3, 1), ElementsAre(1, 1, 2)));
  EXPECT_THAT(batch.inputs,
              ElementsAre('a', 'b', '.', 'c', '.', '.', 'd', 'e'));
  EXPECT_THAT(batch.targets,
              ElementsAre('b', '.', kIgnoredTarget, '.', kIgnoredTarget,
                          kIgnoredTarget, 'e', 'a'));
  EXPECT_EQ(source->CountTargets(0, 8), 5);
  // Cyclically, from the middle on.
  EXPECT_EQ(source->CountTargets(6, 20), 14);
  // A row that ends with a document has no empty document after it.
  EXPECT_THAT(source->Rows(0, 3, 0, 1).documents, ElementsAre(ElementsAre(3)));
  EXPECT_THAT(source->Rows(0, 3, 1, 1).documents, ElementsAre());
}

std::string Words(const std::vector<uint32_t>& values) {
  std::string bytes;
  for (const uint32_t value : values) {
    for (int i = 0; i < 4; ++i) {
      bytes.push_back(static_cast<char>(value >> (8 * i)));
    }
  }
  return bytes;
}

/// Returns a header of 256 words that begins with `first`.
std::string Header(std::vector<uint32_t> first) {
  first.resize(256);
  return Words(first);
}

TEST(TokenSourceTest, TokensMayHave32Bits) {
  const std::string plain = Write("wide.bin", Words({70000, 3, 0x7fffffff}));
  const auto source = TokenSource::FromTokenFile(plain, 32);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT(source->Rows(0, 3, 0, 1).inputs,
              ElementsAre(70000, 3, 0x7fffffff));
  EXPECT_EQ(source->max_token(), 0x7fffffff);
  // Without `bits`, files have 16-bit tokens.
  EXPECT_EQ(TokenSource::FromTokenFile(plain)->size(), 6);
}

TEST(TokenSourceTest, ReadsTheHeader) {
  const auto wide = TokenSource::FromTokenFile(
      Write("llama.bin", Header({20240801, 7, 2}) + Words({128000, 5})));
  ASSERT_TRUE(wide.ok()) << wide.status();
  EXPECT_THAT(wide->Rows(0, 2, 0, 1).inputs, ElementsAre(128000, 5));
  const std::string gpt =
      Write("gpt.bin", Header({20240520, 1, 2}) + Words({0x00070006}));
  EXPECT_THAT(TokenSource::FromTokenFile(gpt, 16)->Rows(0, 2, 0, 1).inputs,
              ElementsAre(6, 7));
  const auto message = [](const std::string& path, int bits) {
    return std::string(
        TokenSource::FromTokenFile(path, bits).status().message());
  };
  EXPECT_THAT(message(gpt, 32), HasSubstr("tokens of 16 bits, not 32"));
  EXPECT_THAT(
      message(Write("cut.bin", Header({20240801, 7, 2}) + Words({1})), 0),
      HasSubstr("declares 2 tokens of 32 bits, but 4 bytes follow it"));
  EXPECT_THAT(message(Write("none.bin", Header({20240801, 7, 0})), 0),
              HasSubstr("no tokens"));
  EXPECT_THAT(message(Write("six.bin", "abcdef"), 32),
              HasSubstr("their number must be a multiple of 4"));
  EXPECT_THAT(message(Write("big.bin", Words({1, 0x80000000})), 32),
              HasSubstr("token 1 is 2147483648"));
}

TEST(TokenSourceTest, RejectsMissingEmptyAndOddFiles) {
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
