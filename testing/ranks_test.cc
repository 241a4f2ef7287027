// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/testing/ranks.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::TestPartResultArray;

// Returns what `run` reports to GoogleTest, with source locations.
template <typename Run>
std::vector<std::string> Reported(Run run) {
  TestPartResultArray results;
  {
    ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::
            INTERCEPT_ONLY_CURRENT_THREAD,
        &results);
    run();
  }
  std::vector<std::string> messages;
  for (int i = 0; i < results.size(); ++i) {
    const ::testing::TestPartResult& result = results.GetTestPartResult(i);
    EXPECT_THAT(result.file_name(), HasSubstr("ranks_test.cc"));
    messages.push_back(result.message());
  }
  return messages;
}

TEST(Ranks, RunTheBodyOnEachRank) {
  for (const int ranks : {3, 1, 4}) {
    RunRanks(ranks, [&](World& world) -> absl::Status {
      CH_EXPECT_EQ(world.size(), ranks);
      CH_ASSIGN_OR_RETURN(const auto all,
                          world.Group("all", world.AllRanks(), "s"));
      CH_ASSIGN_OR_RETURN(
          const std::vector<std::string> here,
          all->Exchange(absl::StrCat("rank ", world.rank()), "who is here"));
      CH_EXPECT_EQ(here.size(), static_cast<size_t>(ranks));
      CH_EXPECT_EQ(here.back(), absl::StrCat("rank ", ranks - 1));
      return absl::OkStatus();
    });
  }
}

TEST(Ranks, ReturnTheValueOfRankZero) {
  std::vector<std::string> lines;
  RunRanks(2, [&](World& world) {
    if (world.rank() == 0) lines = {"", "a\nb", "\\n"};
    return absl::OkStatus();
  });
  EXPECT_THAT(OfFirstRank(lines), ElementsAre("", "a\nb", "\\n"));
  EXPECT_THAT(OfFirstRank(std::vector<std::string>()), ElementsAre());
}

TEST(Ranks, ReportByRankAndOnce) {
  const auto reported = Reported([] {
    RunRanks(4, [](World& world) {
      CH_EXPECT_NE(world.rank() % 2, 1) << "odd";
      CH_EXPECT_LT(world.rank(), 3);
      for (int i = 0; i < 2; ++i) CH_EXPECT_TRUE(world.rank() != 0);
      return absl::OkStatus();
    });
  });
  EXPECT_THAT(reported,
              ElementsAre(HasSubstr("rank 0:\nValue of: world.rank() != 0"),
                          HasSubstr("ranks 1, 3:\nValue of: world.rank() % 2"),
                          HasSubstr("rank 3:\nValue of: world.rank()\n"
                                    "Expected: is < 3\n  Actual: 3")));
}

TEST(Ranks, TheStatusOfTheJobIsAFailureAtTheCaller) {
  const auto fails = [](World& world) -> absl::Status {
    CH_EXPECT_GE(world.rank(), 1);
    return world.rank() == 1 ? absl::DataLossError("a lost shard")
                             : absl::OkStatus();
  };
  const auto reported = Reported([&] { RunRanks(2, fails); });
  EXPECT_THAT(reported, ElementsAre(HasSubstr("rank 0:\n"),
                                    HasSubstr("the job of 2 ranks failed")));
  EXPECT_THAT(reported.back(), HasSubstr("a lost shard"));
}

TEST(Ranks, ReturnTheStatusIfRequested) {
  absl::Status status;
  const auto reported = Reported([&] {
    status = StatusOfRanks(2, [](World& world) -> absl::Status {
      CH_EXPECT_EQ(world.size(), 1);
      return absl::DataLossError("a lost shard");
    });
  });
  EXPECT_THAT(reported, ElementsAre(HasSubstr("ranks 0, 1:\n")));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
}

TEST(Ranks, MakeAMeshOfNamedOrUnnamedAxes) {
  OnMesh({{"fsdp", 2}, {"tp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
    CH_EXPECT_EQ(tp.size(0), 2);
    return absl::OkStatus();
  });
  OnMesh({1, 3}, [](const DeviceMesh& mesh) {
    CH_EXPECT_EQ(mesh.ToString(), "mesh(a=1, b=3)");
  });
  EXPECT_EQ(MeshAxes({4}).ranks(), 4);
  EXPECT_EQ(MeshAxes({2, 3}).axes()[1].name, "b");
}

// [new_test]
TEST(Ranks, EachSeesItsOwnVariables) {
  CH_SKIP_ON(TestEngine::kMpi, "reads variables that another rank wrote");
  std::vector<int> sizes(2);
  OnMesh({{"tp", 2}}, [&](const DeviceMesh& mesh) {
    sizes[static_cast<size_t>(mesh.world().rank())] = mesh.size();
    CH_EXPECT_EQ(mesh.size(), 2);  // On the rank: no skip is needed.
  });
  EXPECT_THAT(sizes, ElementsAre(2, 2));
}
// [/new_test]

TEST(Ranks, AMeshThatCannotBeIsAFailure) {
  const auto reported = Reported([] {
    OnMesh({{"tp", 1}, {"tp", 2}}, [](const DeviceMesh&) {});
  });
  EXPECT_THAT(reported, ElementsAre(HasSubstr("tp")));
}

}  // namespace
}  // namespace crosshatch
