// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/on_first_rank.h"

#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::checkpoint {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::shared_ptr<Communicator>> Everyone(World& world) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.Group("world", ranks, "compute");
}

TEST(OnFirstRankTest, EveryRankHasTheStatus) {
  for (const bool fails : {false, true}) {
    int runs = 0;
    std::vector<absl::Status> got(4, absl::UnknownError(""));
    const absl::Status status =
        StatusOfRanks(4, [&](World& world) -> absl::Status {
          CH_ASSIGN_OR_RETURN(auto comm, Everyone(world));
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
  const absl::Duration timeout = absl::Milliseconds(700);
  RunRanks(
      3,
      [&](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(auto comm, Everyone(world));
        return OnFirstRank(*comm, "work", [&] {
          // The slow disk.
          std::this_thread::sleep_for(absl::ToChronoMilliseconds(timeout * 3));
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
        CH_ASSIGN_OR_RETURN(auto comm, Everyone(world));
        if (world.rank() == 2) return absl::NotFoundError("elsewhere");
        const absl::Status result = OnFirstRank(*comm, "work", [&] {
          // Until the failure is there.
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

}  // namespace
}  // namespace crosshatch::checkpoint
