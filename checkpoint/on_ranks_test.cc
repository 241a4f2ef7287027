// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/on_ranks.h"

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(OnFirstRankTest, EveryRankHasTheStatus) {
  for (const bool fails : {false, true}) {
    int runs = 0;
    std::vector<absl::Status> got(4, absl::UnknownError(""));
    const absl::Status status =
        StatusOfRanks(4, [&](World& world) -> absl::Status {
          CH_ASSIGN_OR_RETURN(auto comm, AllRanks(world));
          got[world.rank()] = OnFirstRank(*comm, "work", [&] {
            ++runs;
            return fails ? absl::DataLossError("busy disk") : absl::OkStatus();
          });
          return absl::OkStatus();
        });
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(runs, 1);
    EXPECT_EQ(got[0],
              fails ? absl::DataLossError("busy disk") : absl::OkStatus());
    for (int rank = 1; rank < 4; ++rank) {
      EXPECT_EQ(got[rank], fails ? absl::DataLossError("on rank 0: busy disk")
                                 : absl::OkStatus());
    }
  }
}

TEST(OnFirstRankTest, WorkMayTakeLongerThanAnyCollective) {
  const absl::Duration timeout = absl::Seconds(2);
  // Time on the disk. A lost rank is detected within 9/8 of its timeout.
  constexpr std::chrono::milliseconds kBusy(2500);
  RunRanks(3,
           [&](World& world) -> absl::Status {
             CH_ASSIGN_OR_RETURN(auto comm, AllRanks(world));
             return OnFirstRank(*comm, "work", [&] {
               std::this_thread::sleep_for(kBusy);
               return absl::OkStatus();
             });
           },
           {.timeout = timeout});
}

TEST(OnFirstRankTest, ARankThatFailsMeanwhileIsAnErrorAfterTheWork) {
  bool done = false;
  absl::Status first;
  const absl::Status status =
      StatusOfRanks(3, [&](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(auto comm, AllRanks(world));
        if (world.rank() == 2) return absl::NotFoundError("elsewhere");
        const absl::Status result = OnFirstRank(*comm, "work", [&] {
          // Runs until the failure is known.
          while (world.context().status().ok()) std::this_thread::yield();
          done = true;
          return absl::OkStatus();
        });
        if (world.rank() == 0) first = result;
        return absl::OkStatus();
      });
  EXPECT_TRUE(done);
  EXPECT_THAT(std::string(first.message()), HasSubstr("elsewhere"));
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
}

TEST(OnEveryRankTest, ReturnsAllResultsOnEveryRank) {
  RunRanks(3, [&](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(auto comm, AllRanks(world));
    CH_ASSIGN_OR_RETURN(
        const std::vector<std::string> said,
        GatherOnEveryRank(*comm, "work", [&]() -> absl::StatusOr<std::string> {
          // The text contains the word of a busy rank and a status code.
          return absl::StrCat("busy 0 ", world.rank());
        }));
    CH_EXPECT_THAT(said, ElementsAre("busy 0 0", "busy 0 1", "busy 0 2"));
    return absl::OkStatus();
  });
}

TEST(OnEveryRankTest, ErrorsOfAllRanksAreOne) {
  RunRanks(4, [&](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(auto comm, AllRanks(world));
    const absl::Status status =
        GatherOnEveryRank(*comm, "work", [&]() -> absl::StatusOr<std::string> {
          if (world.rank() == 0) return std::string();
          if (world.rank() == 2) return absl::DataLossError("torn");
          return absl::NotFoundError("gone");
        }).status();
    CH_EXPECT_EQ(status,
                 absl::NotFoundError("on ranks 1, 3: gone\non rank 2: torn"));
    return absl::OkStatus();
  });
}

TEST(GatherTest, ReportsAnErrorOfAllRanksOnce) {
  RunRanks(2, [&](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(auto comm, AllRanks(world));
    CH_EXPECT_EQ(Gather(*comm, "meet", absl::NotFoundError("gone")),
                 absl::NotFoundError("gone"));
    CH_EXPECT_OK(Gather(*comm, "meet", absl::OkStatus()));
    return absl::OkStatus();
  });
}

TEST(OutcomeTest, RefusesOtherTexts) {
  EXPECT_EQ(DecodeOutcome(EncodeOutcome(std::string("a b"))).value(), "a b");
  EXPECT_EQ(DecodeOutcome(EncodeOutcome(absl::AbortedError("x y"))).status(),
            absl::AbortedError("x y"));
  for (const char* wrong : {"", "0", "x y", "-1 y", "99 y"}) {
    EXPECT_TRUE(absl::IsDataLoss(DecodeOutcome(wrong).status())) << wrong;
  }
}

}  // namespace
}  // namespace crosshatch::checkpoint
