// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tests/conformance/case_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/testing/ranks.h"
#include "nlohmann/json.hpp"

namespace crosshatch::conformance {
namespace {

using Json = nlohmann::json;

std::vector<std::string> ReadLines(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.is_open()) << path;
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// Uses as many ranks as the largest mesh.
std::vector<std::string> Answers(const std::vector<std::string>& cases) {
  std::vector<std::string> answers;
  RunRanks(RanksOf(cases), [&](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const std::vector<std::string> of_rank,
                        RunCases(world, cases));
    if (world.rank() == 0) answers = of_rank;
    return absl::OkStatus();
  });
  return OfFirstRank(answers);
}

void DropOffsetsOfEmptyShards(Json& answer) {
  for (Json& rank : answer["ranks"]) {
    if (rank["values"].empty()) rank.erase("offset");
  }
}

TEST(CaseRunner, MatchesOtherSystems) {
  const std::vector<std::string> expected =
      ReadLines("tests/conformance/layout.answers.jsonl");
  const std::vector<std::string> actual =
      Answers(ReadLines("tests/conformance/layout.cases.jsonl"));
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    Json ours = Json::parse(actual[i]);
    Json theirs = Json::parse(expected[i]);
    DropOffsetsOfEmptyShards(ours);
    DropOffsetsOfEmptyShards(theirs);
    EXPECT_EQ(ours, theirs);
  }
}

TEST(CaseRunner, NamesAPlacementOfEveryAxis) {
  const std::vector<std::string> answers = Answers(
      {R"json({"id":"a","kind":"fsdp_tp","mesh":[2,2,2],"shape":[5],"tp":"S(0)"})json"});
  const Json answer = Json::parse(answers[0]);
  ASSERT_TRUE(answer.contains("ranks")) << answers[0];
  ASSERT_EQ(answer["ranks"].size(), 8u);
  for (const Json& rank : answer["ranks"]) {
    EXPECT_EQ(rank["placements"], Json::array({"_S(0,2)", "R", "S(0)"}));
  }
  // By fsdp, replica and tp: 3 and 2 elements over tp, then halves of these.
  EXPECT_EQ(answer["ranks"][0]["values"], Json::array({0.0, 1.0}));
  EXPECT_EQ(answer["ranks"][2]["values"], Json::array({0.0, 1.0}));
  EXPECT_EQ(answer["ranks"][1]["values"], Json::array({3.0}));
  EXPECT_EQ(answer["ranks"][4]["values"], Json::array({2.0}));
}

TEST(CaseRunner, RejectsInvalidCasesAndContinues) {
  const std::vector<std::string> answers = Answers({
      R"json({"id":"a","kind":"layout","mesh":[2],"shape":[3],"src":["S(1)"]})json",
      R"json({"id":"b","kind":"swap","mesh":[2],"shape":[3]})json",
      R"json({"id":"c","kind":"layout","mesh":[0],"shape":[3],"src":["R"]})json",
      R"json({"id":"d","kind":"layout","mesh":[2],"shape":[3]})json",
      "no JSON",
      R"json({"id":"f","kind":"layout","mesh":[2],"shape":[3],"src":["S(0)"]})json",
  });
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_THAT(answers[i], testing::HasSubstr("\"error\":")) << i;
  }
  EXPECT_EQ(
      answers[5],
      R"json({"id":"f","ranks":[{"shape":[2],"values":[0.0,1.0],"offset":[0]},)json"
      R"json({"shape":[1],"values":[2.0],"offset":[2]}]})json");
}

}  // namespace
}  // namespace crosshatch::conformance
