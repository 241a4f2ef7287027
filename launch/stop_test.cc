// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/stop.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <thread>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

TEST(StopTest, NoRankStopsWithoutASignal) {
  const StopSignals signals;
  EXPECT_TRUE(RunLocal(3, [](World& world) -> absl::Status {
                CH_ASSIGN_OR_RETURN(const bool stops, StopRequested(world));
                return stops ? absl::InternalError("stops") : absl::OkStatus();
              }).ok());
  EXPECT_FALSE(signals.was_agreed());
}

class StopSignalTest : public testing::TestWithParam<int> {};

TEST_P(StopSignalTest, AllRanksStopAtTheSameStep) {
  const StopSignals signals;
  std::vector<int> steps(3);
  const absl::Status status = RunLocal(3, [&](World& world) -> absl::Status {
    while (true) {
      // At any moment of the others' step.
      if (world.rank() == 1 && steps[1] == 5) std::raise(GetParam());
      ++steps[world.rank()];
      CH_ASSIGN_OR_RETURN(const bool stops, StopRequested(world));
      if (stops) return absl::OkStatus();
    }
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(signals.was_agreed());
  EXPECT_EQ(steps[0], steps[1]);
  EXPECT_EQ(steps[0], steps[2]);
  // Others may have read the flag before the signal came.
  EXPECT_GE(steps[0], 5);
  EXPECT_LE(steps[0], 6);
}

INSTANTIATE_TEST_SUITE_P(Signals, StopSignalTest,
                         testing::Values(SIGTERM, SIGINT));

TEST(StopTest, ASecondSignalEndsTheProcessUnlessItIsTheSameStop) {
  EXPECT_EXIT(
      {
        const StopSignals signals;
        std::raise(SIGTERM);
        std::raise(SIGINT);
        std::raise(SIGTERM);
        std::fputs("goes on", stderr);
        std::this_thread::sleep_for(std::chrono::milliseconds(1001));
        std::raise(SIGINT);
      },
      testing::KilledBySignal(SIGINT), "goes on");
}

TEST(StopTest, EarlierHandlersAreRestored) {
  EXPECT_EXIT(
      {
        { const StopSignals signals; }
        std::raise(SIGTERM);
      },
      testing::KilledBySignal(SIGTERM), "");
}

TEST(StopTest, ADryRunDoesNotStop) {
  const StopSignals signals;
  EXPECT_TRUE(
      RunFake({.world_size = 1000, .rank = 7},
              [](World& world) -> absl::Status {
                CH_ASSIGN_OR_RETURN(const bool stops, StopRequested(world));
                return stops ? absl::InternalError("stops") : absl::OkStatus();
              })
          .ok());
}

}  // namespace
}  // namespace crosshatch
