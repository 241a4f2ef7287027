// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/checkpoint/json_text-inl.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace crosshatch::checkpoint {
namespace {

using ::testing::HasSubstr;

std::string Nested(int depth, const std::string& open,
                   const std::string& close) {
  std::string text;
  for (int i = 0; i < depth; ++i) text += open;
  text += "1";
  for (int i = 0; i < depth; ++i) text += close;
  return text;
}

TEST(JsonTextTest, ReadsAnObject) {
  nlohmann::json json;
  ASSERT_TRUE(
      ParseJsonObject(R"({"a": {"b": [1, "}]\"["]}})", "it", json).ok());
  EXPECT_EQ(json["a"]["b"][0], 1);
  EXPECT_EQ(json["a"]["b"][1], "}]\"[");
}

TEST(JsonTextTest, LimitsTheDepth) {
  nlohmann::json json;
  const auto parse = [&](int lists) {
    return ParseJsonObject(
        absl::StrCat(R"({"a": )", Nested(lists, "[", "]"), "}"), "it", json);
  };
  EXPECT_TRUE(parse(kMaxJsonDepth - 1).ok());
  for (const int lists : {kMaxJsonDepth, 200'000, 5'000'000}) {
    const absl::Status status = parse(lists);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << lists;
    EXPECT_EQ(status.message(), "it is nested deeper than 64 levels");
  }
  // Only open brackets, and nested objects.
  EXPECT_FALSE(ParseJsonObject(std::string(200'000, '['), "it", json).ok());
  EXPECT_FALSE(
      ParseJsonObject(Nested(200'000, R"({"a":)", "}"), "it", json).ok());
}

TEST(JsonTextTest, ReportsEachMistake) {
  const struct {
    std::string text;
    const char* message;
  } cases[] = {
      {"", "it is not JSON"},
      {"{", "it is not JSON"},
      {"{\"a\": \"\xff\"}", "it is not JSON"},
      {"{\"a\": 1e999}", "it is not JSON"},
      {"[]", "it is not a JSON object"},
      {"null", "it is not a JSON object"},
      {R"({"a": 1, "a": 1})", "it names \"a\" twice"},
      {R"({"b": {"a": 1, "a": 1}})", "it names \"a\" twice"},
  };
  for (const auto& c : cases) {
    nlohmann::json json;
    const absl::Status status = ParseJsonObject(c.text, "it", json);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << c.text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
  nlohmann::json json;
  EXPECT_TRUE(
      ParseJsonObject(R"({"a": {"c": 1}, "b": {"c": 1}})", "it", json).ok());
}

}  // namespace
}  // namespace crosshatch::checkpoint
