// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/timeline.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace crosshatch::examples {
namespace {

using nlohmann::json;
using ::testing::IsSupersetOf;

struct Span {
  std::string category;
  std::string group;
  double begin;
  double end;
};
// By rank and row name.
using Rows = std::map<int, std::map<std::string, std::vector<Span>>>;

Rows Parse(const json& trace) {
  std::map<std::pair<int, int>, std::string> names;
  Rows rows;
  for (const json& event : trace.at("traceEvents")) {
    const int rank = event.at("pid");
    const std::pair<int, int> row = {rank, event.at("tid")};
    if (event.at("ph") == "M") {
      if (event.at("name") == "thread_name") {
        names[row] = event.at("args").at("name");
      }
      continue;
    }
    EXPECT_EQ(event.at("ph"), "X");
    EXPECT_TRUE(names.count(row)) << "a span before the name of its row";
    const double begin = event.at("ts");
    rows[rank][names[row]].push_back({event.at("cat"),
                                      event.at("args").at("group"), begin,
                                      begin + double{event.at("dur")}});
  }
  return rows;
}

bool Overlap(const Span& a, const Span& b) {
  return a.begin < b.end && b.begin < a.end;
}

// All cases use one training run, which is large enough to overlap.
class TimelineTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const absl::StatusOr<std::string> trace = TraceTraining(kOptions);
    ASSERT_TRUE(trace.ok()) << trace.status();
    rows_ = Parse(json::parse(*trace));
  }
  static void TearDownTestSuite() { rows_.clear(); }
  // Returns the outermost spans of a row, those of modules and groups; ops and
  // collectives nest in them.
  static std::vector<Span> Row(int rank, const std::string& name) {
    std::vector<Span> outer;
    for (const Span& span : rows_[rank][name]) {
      if (span.category != "op" && span.category != "collective" &&
          span.category != "wait") {
        outer.push_back(span);
      }
    }
    return outer;
  }

  static constexpr TimelineOptions kOptions = {
      .ranks = 2, .steps = 3, .layers = 4};
  static inline Rows rows_;
};

TEST_F(TimelineTest, HasARowForEachKindOfWorkOfEachRank) {
  const auto groups = static_cast<size_t>(kOptions.layers + 1);
  const auto steps = static_cast<size_t>(kOptions.steps);
  ASSERT_EQ(rows_.size(), 2u);
  for (int rank = 0; rank < 2; ++rank) {
    std::set<std::string> names;
    for (const auto& [name, spans] : rows_[rank]) names.insert(name);
    EXPECT_THAT(names, IsSupersetOf({"compute", "fsdp_all_gather",
                                     "fsdp_reduce_scatter"}));
    EXPECT_EQ(Row(rank, "compute").size(), 2 * groups * steps);
    // The root stays gathered for its backward.
    EXPECT_EQ(Row(rank, "fsdp_all_gather").size(), (2 * groups - 1) * steps);
    EXPECT_EQ(Row(rank, "fsdp_reduce_scatter").size(), groups * steps);
  }
}

TEST_F(TimelineTest, NestsTheSpansOfARow) {
  for (const auto& [rank, rows] : rows_) {
    for (const auto& [name, spans] : rows) {
      for (size_t i = 0; i < spans.size(); ++i) {
        EXPECT_LE(spans[i].begin, spans[i].end);
        for (size_t k = i + 1; k < spans.size(); ++k) {
          const Span& a = spans[i];
          const Span& b = spans[k];
          EXPECT_LE(a.begin, b.begin);
          EXPECT_TRUE(b.begin >= a.end || b.end <= a.end)
              << name << ": " << a.group << " and " << b.group;
        }
      }
    }
  }
}

TEST_F(TimelineTest, HasTheOpsOfModulesAndTheCollectivesOfGroups) {
  const auto has = [&](const std::string& row, const std::string& category,
                       const std::string& subject) {
    const std::vector<Span>& spans = rows_[0][row];
    return std::any_of(spans.begin(), spans.end(), [&](const Span& span) {
      return span.category == category && span.group == subject;
    });
  };
  EXPECT_TRUE(has("compute", "op", "matmul"));
  EXPECT_TRUE(has("compute", "wait", "unshard"));
  EXPECT_TRUE(has("fsdp_all_gather", "collective", "all_gather fsdp"));
}

// While a block computes, the next one is gathered. In backward, the gradients
// of the later one are reduced.
TEST_F(TimelineTest, ShowsOverlap) {
  const auto shows = [&](const std::string& row, const std::string& compute) {
    for (int rank = 0; rank < 2; ++rank) {
      for (const Span& alongside : Row(rank, row)) {
        for (const Span& span : Row(rank, "compute")) {
          if (span.category == compute && span.group != alongside.group &&
              span.group != "Llama" && Overlap(span, alongside)) {
            return true;
          }
        }
      }
    }
    return false;
  };
  EXPECT_TRUE(shows("fsdp_all_gather", "forward"));
  EXPECT_TRUE(shows("fsdp_all_gather", "backward"));
  EXPECT_TRUE(shows("fsdp_reduce_scatter", "backward"));
}

TEST(TraceTrainingTest, RejectsInvalidTraces) {
  for (const TimelineOptions& options :
       {TimelineOptions{.ranks = 0}, TimelineOptions{.ranks = -1},
        TimelineOptions{.ranks = 1 << 20}, TimelineOptions{.steps = 0},
        TimelineOptions{.layers = 0}, TimelineOptions{.layers = -1}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(TraceTraining(options).status()));
  }
}

}  // namespace
}  // namespace crosshatch::examples
