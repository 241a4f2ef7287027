// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/data_position.h"

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSize = 11;

// Returns the rows of a global batch, in the order of the ranks of `data`.
absl::StatusOr<std::vector<int64_t>> AllRows(DataPosition& position,
                                             const DeviceMesh& data,
                                             int64_t rows) {
  CH_ASSIGN_OR_RETURN(Communicator * comm, MeshCommunicator(data));
  CH_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      comm->Exchange(absl::StrJoin(position.Next(data, rows), ","), "rows"));
  std::vector<int64_t> all;
  for (const std::string& text : texts) {
    for (const absl::string_view number :
         absl::StrSplit(text, ',', absl::SkipEmpty())) {
      EXPECT_TRUE(absl::SimpleAtoi(number, &all.emplace_back()));
    }
  }
  return all;
}

TEST(DataPosition, ResumesAtTheNextRowOnAnyNumberOfRanks) {
  CH_SKIP_ON(TestEngine::kMpi, "reads what other ranks wrote to its variables");
  StateDict saved;
  int64_t next = 0;
  for (const int ranks : {3, 1, 4, 2}) {
    StateDict now;
    RunRanks(ranks, [&](World& world) -> absl::Status {
      int64_t row = next;
      CH_ASSIGN_OR_RETURN(const DeviceMesh data,
                          InitDeviceMesh(world, {{"data", world.size()}}));
      DataPosition position(kSize);
      if (!saved.empty()) {
        CH_RETURN_IF_ERROR(position.StateToFill(NamesOf(saved)).status());
        CH_RETURN_IF_ERROR(position.Restore(saved));
      }
      for (const int64_t rows : {5, 2, 0, 7, 30}) {
        std::vector<int64_t> expected;
        for (int64_t i = 0; i < rows; ++i) expected.push_back(row++ % kSize);
        CH_ASSIGN_OR_RETURN(const std::vector<int64_t> all,
                            AllRows(position, data, rows));
        CH_EXPECT_EQ(all, expected);
        CH_EXPECT_EQ(position.row(), row % kSize);
        CH_EXPECT_EQ(position.epoch(), row / kSize);
      }
      if (world.rank() == 0) {
        CH_ASSIGN_OR_RETURN(now, position.State());
      }
      return absl::OkStatus();
    });
    saved = now;
    next += 5 + 2 + 7 + 30;
  }
}

TEST(DataPosition, RefusesAPositionInAnotherDataSet) {
  DataPosition position(kSize);
  DataPosition other(kSize + 1);
  const absl::StatusOr<StateDict> state = other.State();
  ASSERT_TRUE(state.ok());
  const absl::Status status = position.Restore(*state);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("of a data set of 12 rows, and this one has 11"));
  StateDict beyond;
  for (const auto& [name, value] :
       {std::pair<std::string, int64_t>{"size", kSize},
        {"row", kSize},
        {"epoch", 0}}) {
    ASSERT_TRUE(beyond.Add(name, value).ok());
  }
  EXPECT_TRUE(absl::IsDataLoss(position.Restore(beyond)));
  EXPECT_EQ(position.row(), 0);
}

// Returns the expected order of an epoch: a rotation by a few rows that depends
// on the epoch.
int64_t Turned(int64_t index) {
  return (index % kSize + 4 * (index / kSize)) % kSize;
}

TEST(DataPosition, APermutedReaderReadsEachRowOnceAnEpoch) {
  OnMesh({{"data", 3}}, [](const DeviceMesh& data) -> absl::Status {
    DataPosition position(kSize);
    CH_ASSIGN_OR_RETURN(Communicator * comm, MeshCommunicator(data));
    std::vector<std::string> texts;
    std::map<int64_t, std::multiset<int64_t>> read;
    // Two epochs; the second batch contains rows of both.
    for (const int64_t rows : {7, 7, 8}) {
      CH_ASSIGN_OR_RETURN(
          texts,
          comm->Exchange(absl::StrJoin(position.NextIndices(data, rows), ","),
                         "indices"));
      for (const std::string& text : texts) {
        for (const absl::string_view number :
             absl::StrSplit(text, ',', absl::SkipEmpty())) {
          int64_t index = 0;
          CH_EXPECT_TRUE(absl::SimpleAtoi(number, &index));
          read[index / kSize].insert(Turned(index));
        }
      }
    }
    std::multiset<int64_t> each;
    for (int64_t row = 0; row < kSize; ++row) each.insert(row);
    CH_EXPECT_EQ(read.size(), 2u);
    CH_EXPECT_EQ(read[0], each);
    CH_EXPECT_EQ(read[1], each);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace crosshatch::nn
