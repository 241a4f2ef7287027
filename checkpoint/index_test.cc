// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/index.h"

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/dtensor/layout/box.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// The example in docs/checkpoints.md.
constexpr char kText[] =
    R"({"format": "crosshatch.checkpoint", "version": 1, "ranks": 4,
"files": ["state-00001-of-00002.safetensors",
"state-00002-of-00002.safetensors"],
"values": {"data.position": 4096,
"note": "as \"it\" was",
"optimizer.lr": {"double": "0.10000000000000001"}},
"tensors": {"model.w": {"dtype": "F32", "shape": [5, 4], "cuts": [[0, 3, 5], [0, 4]], "files": [0, 1], "hash": "00000000000000ff"},
"step": {"dtype": "I64", "shape": [], "cuts": [], "files": [1]}},
"index_hash": "302e61f7243f39b4"}
)";

CheckpointIndex Sample() {
  CheckpointIndex index;
  index.ranks = 4;
  index.files = {DataFileName(0, 2), DataFileName(1, 2)};
  index.values = {{"data.position", int64_t{4096}},
                  {"note", std::string("as \"it\" was")},
                  {"optimizer.lr", 0.1}};
  index.tensors = {{.name = "model.w",
                    .dtype = kFloat32,
                    .sizes = {5, 4},
                    .cuts = {{0, 3, 5}, {0, 4}},
                    .files = {0, 1},
                    .hash = 255},
                   {.name = "step", .dtype = kInt64, .files = {1}}};
  return index;
}

TEST(IndexTest, IsWrittenAndReadAsDocumented) {
  EXPECT_EQ(FormatIndex(Sample()).value(), kText);
  const auto parsed = ParseIndex(kText, "it");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->ranks, 4);
  EXPECT_EQ(parsed->files, Sample().files);
  EXPECT_EQ(parsed->values, Sample().values);
  EXPECT_EQ(parsed->tensors, Sample().tensors);
  EXPECT_THAT(parsed->Names(), ElementsAre("data.position", "model.w", "note",
                                           "optimizer.lr", "step"));
  EXPECT_EQ(parsed->Find("step"), &parsed->tensors[1]);
  EXPECT_EQ(parsed->Find("other"), nullptr);
  EXPECT_EQ(parsed->bytes(), 5 * 4 * 4 + 8);
}

TEST(IndexTest, ValuesKeepEveryBit) {
  CheckpointIndex index;
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<SmallValue> values = {std::numeric_limits<int64_t>::min(),
                                          std::numeric_limits<int64_t>::max(),
                                          -0.0,
                                          5e-324,
                                          std::numeric_limits<double>::max(),
                                          infinity,
                                          -infinity,
                                          1.0 / 3,
                                          std::string("\xff\x00 bytes", 8),
                                          std::string("\xc3\xa9\n\t\"\\"),
                                          std::string()};
  for (size_t i = 0; i < values.size(); ++i) {
    index.values[std::to_string(i)] = values[i];
  }
  const auto parsed = ParseIndex(FormatIndex(index).value(), "it");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(parsed->values.at(std::to_string(i)), values[i]) << i;
  }
  EXPECT_TRUE(std::signbit(std::get<double>(parsed->values.at("2"))));
  index.values = {{"nan", -std::numeric_limits<double>::quiet_NaN()}};
  const auto nan = ParseIndex(FormatIndex(index).value(), "it");
  ASSERT_TRUE(nan.ok()) << nan.status();
  EXPECT_TRUE(std::isnan(std::get<double>(nan->values.at("nan"))));
}

TEST(IndexTest, FindsTheCellsThatABoxOverlaps) {
  const IndexedTensor tensor{.name = "w",
                             .sizes = {10, 6},
                             .cuts = {{0, 3, 5, 10}, {0, 2, 6}},
                             .files = {0, 0, 0, 0, 0, 0}};
  EXPECT_EQ(tensor.CellBox(3), (Box{{3, 2}, {2, 4}}));
  EXPECT_EQ(tensor.CellName(3), "w[3:5, 2:6]");
  EXPECT_THAT(tensor.CellsIntersecting({{3, 2}, {2, 4}}), ElementsAre(3));
  EXPECT_THAT(tensor.CellsIntersecting({{2, 0}, {2, 2}}), ElementsAre(0, 2));
  EXPECT_THAT(tensor.CellsIntersecting({{0, 0}, {10, 6}}),
              ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(tensor.CellsIntersecting({{3, 2}, {0, 4}}), ElementsAre());
  const IndexedTensor scalar{.name = "s", .files = {0}};
  EXPECT_EQ(scalar.CellName(0), "s");
  EXPECT_THAT(scalar.CellsIntersecting({}), ElementsAre(0));
}

TEST(IndexTest, NamesThatAreNotUtf8AreRefused) {
  CheckpointIndex index;
  index.values["a\xff"] = int64_t{1};
  const absl::Status status = FormatIndex(index).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("a\\xff"));
}

TEST(IndexTest, FilesOfACheckpointAreKnownByTheirNames) {
  for (const std::string& name :
       {std::string(kIndexFile), DataFileName(0, 1),
        DataFileName(122'000, 123'456), ReportFileName(17),
        ReportFileName(17) + ".saving"}) {
    EXPECT_TRUE(IsCheckpointFile(name)) << name;
  }
  for (const char* name :
       {"checkpoint.json.saving", "state-0001-of-00002.safetensors",
        "state-00001-of-00002.safetensors.saving", "state-00001.safetensors",
        "report-1", "model.safetensors", "", "../checkpoint.json"}) {
    EXPECT_FALSE(IsCheckpointFile(name)) << name;
  }
}

struct Wrong {
  const char* from;
  const char* to;
  const char* says;
};

/// Each changes one thing in the sample.
const Wrong kWrong[] = {
    {"\"format\"", "\"formal\"", "its format is not"},
    {"crosshatch.checkpoint", "other", "its format is not"},
    {"\"version\": 1", "\"version\": \"1\"", "it has no version"},
    {"\"ranks\": 4", "\"ranks\": 0",
     "its ranks are not a number of at least 1"},
    {"\"ranks\": 4", "\"ranks\": 4294967297", "its ranks are not"},
    {"\"ranks\": 4", "\"ranks\": 4, \"more\": 1", "unknown field \"more\""},
    {"\"values\": {", "\"values\": [", "is not JSON"},
    {"state-00002-of-00002", "state-00001-of-00002", "twice"},
    {"state-00002-of-00002", "../state-00002-of-00002", "does not have a name"},
    {"\"state-00002-of-00002.safetensors\"", "7", "does not have a name"},
    {"4096", "4.5", "value \"data.position\": it is neither"},
    {"4096", "18446744073709551615", "does not fit 64 bits"},
    {"4096", "null", "it is neither"},
    {"\"0.10000000000000001\"", "\"0.1 \\u0000\"", "it is neither"},
    {"\"double\"", "\"base64\"", "it is neither"},
    {"4096", "4097", "its contents differ from the saved ones (hash "},
    {"0.10000000000000001", "0.10000000000000002",
     "its contents differ from the saved"},
    {"as \\\"it", "as \\\"at", "its contents differ from the saved"},
    {"\"note\"", "\"mote\"", "its contents differ from the saved"},
    {",\n\"note\": \"as \\\"it\\\" was\"", "",
     "its contents differ from the saved"},
    {"\"index_hash\": \"", "\"index_hash\": \"0", "its contents differ"},
    {"\"model.w\"", "\"model.v\"", "its contents differ from the saved"},
    {"[0, 3, 5]", "[0, 2, 5]", "its contents differ from the saved"},
    {"[0, 1]", "[1, 0]", "its contents differ from the saved"},
    {"\"ranks\": 4", "\"ranks\": 5", "its contents differ from the saved"},
    {"00000000000000ff", "00000000000000fe",
     "its contents differ from the saved"},
    {"\"note\"", "\"step\"", "\"step\" is a tensor and a value"},
    {"\"note\"", "\"data.position\"", "names \"data.position\" twice"},
    {"\"note\"", "\"\"", "a value has no name"},
    {"\"model.w\"", "\"\"", "a tensor has no name"},
    {"\"F32\"", "\"F31\"", "tensor \"model.w\": its dtype"},
    {"\"F32\"", "32", "its dtype"},
    {"[5, 4]", "[5, -4]", "its shape is not a list of sizes"},
    {"[5, 4]", "[5, 4, 1]", "its cuts are not one list per dim"},
    {"[5, 4]", "[6, 4]", "its cuts of dim 0 do not go from 0 to 6"},
    {"[5, 4]", "[4611686018427387904, 4]", "does not fit 64 bits"},
    {"[0, 3, 5]", "[1, 3, 5]", "do not go from 0"},
    {"[0, 3, 5]", "[0, 3, 3, 5]", "its cuts of dim 0 are not ascending"},
    {"[0, 3, 5]", "[0, 6, 5]", "are not ascending"},
    {"[0, 3, 5]", "[]", "do not go from 0"},
    {"[0, 3, 5]", "7", "do not go from 0"},
    {"[0, 1]", "[0]", "not one per cell, of its 2 cells"},
    {"[0, 1]", "[0, 1, 1]", "not one per cell, of its 2 cells"},
    {"[0, 1]", "[0, 2]", "a cell is in file 2 of 2"},
    {"[0, 1]", "[0, -1]", "a cell is in file -1"},
    {"00000000000000ff", "ff", "its hash is not 16 hexadecimal digits"},
    {"\"hash\"", "\"hush\"", "unknown field \"hush\""},
    {", \"cuts\": []", "", "it has no cuts"},
};

TEST(IndexTest, ReportsEachMistake) {
  for (const Wrong& wrong : kWrong) {
    std::string text = kText;
    const size_t at = text.find(wrong.from);
    ASSERT_NE(at, std::string::npos) << wrong.from;
    text.replace(at, std::string(wrong.from).size(), wrong.to);
    const absl::Status status = ParseIndex(text, "the index").status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << wrong.to << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(wrong.says))
        << wrong.to;
    EXPECT_THAT(std::string(status.message()), HasSubstr("the index"));
  }
}

// Indexes of older versions, without hashes or with a hash of the values only.
TEST(IndexTest, ReadsOlderVersions) {
  std::string text = kText;
  const size_t at = text.find(",\n\"index_hash\"");
  text.replace(at, std::string::npos, "}\n");
  EXPECT_TRUE(ParseIndex(text, "it").ok());
  const size_t tensors = text.find("\"tensors\"");
  text.insert(tensors, "\"values_hash\": \"9495cb539b00601b\",\n");
  EXPECT_TRUE(ParseIndex(text, "it").ok());
  text.replace(text.find("4096"), 4, "4097");
  EXPECT_THAT(std::string(ParseIndex(text, "it").status().message()),
              HasSubstr("its values differ from the saved ones (hash "));
}

// Flips each bit of the file: what can still be read equals the original.
TEST(IndexTest, DetectsEveryFlippedBit) {
  const std::string whole = kText;
  for (size_t at = 0; at < whole.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string text = whole;
      text[at] = static_cast<char>(text[at] ^ (1 << bit));
      const auto parsed = ParseIndex(text, "runs/a/checkpoint.json");
      if (!parsed.ok()) {
        EXPECT_THAT(std::string(parsed.status().message()),
                    HasSubstr("runs/a/checkpoint.json"));
        continue;
      }
      EXPECT_EQ(FormatIndex(*parsed).value(), whole)
          << "bit " << bit << " of byte " << at;
    }
  }
}

TEST(IndexTest, RefusesALaterVersion) {
  std::string text = kText;
  text.replace(text.find("\"version\": 1"), 12, "\"version\": 2");
  const absl::Status status = ParseIndex(text, "it").status();
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
}

TEST(IndexTest, ADirectoryWithoutAnIndexIsNoCheckpoint) {
  const std::string dir = ::testing::TempDir() + "no_index";
  std::filesystem::create_directories(dir);
  const absl::Status status = ReadIndex(dir).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("no_index is not a checkpoint: it has no checkpoint.json"));
}

}  // namespace
}  // namespace crosshatch::checkpoint
