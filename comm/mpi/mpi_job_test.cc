// SPDX-License-Identifier: Apache-2.0
//
// Tests that need real processes: waits without CPU use, collectives while the
// rank computes, MPI's own messages.

#include <sys/resource.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/base/threads.h"
#include "crosshatch/comm/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using std::chrono::milliseconds;

absl::StatusOr<std::shared_ptr<Communicator>> Everybody(World& world) {
  return world.Group("all", world.AllRanks(), "comm");
}

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) +
           static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(MpiJobTest, WhoWaitsLeavesTheCoreToOthers) {
  double spent = 0;
  const absl::Status status = RunMpi([&](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(auto comm, Everybody(world));
    Stream& stream = world.context().SideStream("comm");
    CH_RETURN_IF_ERROR(Barrier(*comm, stream, "begin"));
    CH_RETURN_IF_ERROR(world.context().Synchronize());
    const double before = CpuSeconds();
    if (world.rank() == 0) std::this_thread::sleep_for(milliseconds(400));
    CH_RETURN_IF_ERROR(Barrier(*comm, stream, "end"));
    CH_RETURN_IF_ERROR(world.context().Synchronize());
    spent = CpuSeconds() - before;
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  // Spinning would take 0.4 s; waking up a thousand times a second takes a
  // hundredth of that.
  EXPECT_LT(spent, 0.2);
}

TEST(MpiJobTest, ACollectiveGoesOnWhileTheRankComputes) {
  const absl::Status status = RunMpi([&](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(auto comm, Everybody(world));
    Stream& stream = world.context().SideStream("comm");
    constexpr int64_t kCount = 1 << 20;
    const std::vector<float> mine(kCount, static_cast<float>(world.rank()));
    std::vector<float> all(kCount * static_cast<size_t>(world.size()));
    CH_RETURN_IF_ERROR(AllGather(*comm, mine.data(), all.data(), kCount,
                                 kFloat32, stream, "weights"));
    const Event done = stream.Record();
    while (done.state() != nullptr && !done.state()->reached()) {
    }
    CH_RETURN_IF_ERROR(world.context().Synchronize());
    for (int r = 0; r < world.size(); ++r) {
      if (all[static_cast<size_t>((r + 1) * kCount - 1)] !=
          static_cast<float>(r)) {
        return absl::DataLossError(absl::StrCat("the part of rank ", r));
      }
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(MpiJobTest, DataBeyondOneMessage) {
  const absl::Status status = RunMpi(
      [&](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(auto comm, Everybody(world));
        Stream& stream = world.context().SideStream("comm");
        std::vector<double> data(5003, world.rank() + 1);
        CH_RETURN_IF_ERROR(AllReduce(*comm, data.data(), 5003, kFloat64,
                                     ReduceOp::kSum, stream, "sum"));
        CH_RETURN_IF_ERROR(world.context().Synchronize());
        const double want = world.size() * (world.size() + 1) / 2;
        for (double value : data) {
          if (value != want) return absl::DataLossError(absl::StrCat(value));
        }
        return absl::OkStatus();
      },
      {.job = {.test = {.max_message_bytes = 64}}});
  EXPECT_TRUE(status.ok()) << status;
}

/// Control messages that MPI only sends when the receiver is ready.
TEST(MpiJobTest, LabelsAndBlobsOfAnyLength) {
  const absl::Status status = RunMpi([&](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(auto comm, Everybody(world));
    const std::string label(300000, 'x');
    CH_RETURN_IF_ERROR(
        Barrier(*comm, world.context().SideStream("comm"), label));
    CH_ASSIGN_OR_RETURN(
        const std::vector<std::string> blobs,
        comm->Exchange(std::string(3000000, 'a' + world.rank()), "blobs"));
    CH_RETURN_IF_ERROR(world.context().Synchronize());
    for (int r = 0; r < world.size(); ++r) {
      if (blobs[r] != std::string(3000000, 'a' + r)) {
        return absl::DataLossError(absl::StrCat("the blob of rank ", r));
      }
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(MpiJobTest, BlobsAreExchangedBeforeThereIsAJob) {
  int rank = 0;
  int size = 0;
  ASSERT_TRUE(RunMpi([&](World& world) {
                rank = world.rank();
                size = world.size();
                return absl::OkStatus();
              }).ok());
  const auto said = ExchangeByMpi(std::string(static_cast<size_t>(rank), 'x'));
  ASSERT_TRUE(said.ok()) << said.status();
  ASSERT_EQ(said->size(), static_cast<size_t>(size));
  for (int r = 0; r < size; ++r) {
    EXPECT_EQ((*said)[r], std::string(static_cast<size_t>(r), 'x'));
  }
}

TEST(MpiJobTest, BlobsThatGoInPieces) {
  // One of the three is empty, and one is longer than the others.
  const auto blob = [](int rank) {
    std::string text(static_cast<size_t>(rank) * 1500000, 'a');
    for (size_t i = 0; i < text.size(); i += 1000) text[i] = 'b';
    return text;
  };
  int rank = 0;
  ASSERT_TRUE(RunMpi([&](World& world) {
                rank = world.rank();
                return absl::OkStatus();
              }).ok());
  const auto said = ExchangeByMpi(blob(rank));
  ASSERT_TRUE(said.ok()) << said.status();
  ASSERT_EQ(said->size(), 3u);
  for (int r = 0; r < 3; ++r) EXPECT_TRUE((*said)[r] == blob(r)) << r;
}

TEST(MpiJobTest, SomeOfTheProcessesRunAJob) {
  for (const int ranks : {2, 1, 3, 0}) {
    int size = 0;
    bool took_part = false;
    const absl::Status status = RunMpi(
        [&](World& world) -> absl::Status {
          CH_ASSIGN_OR_RETURN(auto comm, Everybody(world));
          CH_RETURN_IF_ERROR(
              Barrier(*comm, world.context().SideStream("comm"), "here"));
          took_part = true;
          size = world.size();
          return world.context().Synchronize();
        },
        {.ranks = ranks});
    EXPECT_TRUE(status.ok()) << status;
    const auto said = ExchangeByMpi(absl::StrCat(took_part, size));
    ASSERT_TRUE(said.ok()) << said.status();
    const int expected = ranks == 0 ? 3 : ranks;
    for (int r = 0; r < 3; ++r) {
      EXPECT_EQ((*said)[r],
                absl::StrCat(r < expected, r < expected ? expected : 0));
    }
  }
}

/// mpirun binds processes to cores, so threads for all of the machine's cores
/// would share one.
TEST(MpiJobTest, ThreadsAreThoseOfTheCoresThatAProcessMayRunOn) {
  int threads = 0;
  ASSERT_TRUE(RunMpi([&](World& world) {
                threads = world.context().pool().width();
                return absl::OkStatus();
              }).ok());
  EXPECT_GE(threads, 1);
  EXPECT_LE(threads, static_cast<int>(AllowedCores().count()));
}

TEST(MpiJobTest, RefusesWhatCannotBe) {
  const absl::Status status =
      RunMpi([](World&) { return absl::OkStatus(); },
             {.job = {.test = {.max_message_bytes = 0}}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RunMpi([](World&) { return absl::OkStatus(); }, {.ranks = 4}),
            absl::InvalidArgumentError(
                "a job of 4 ranks, and there are 3 processes"));
}

}  // namespace
}  // namespace crosshatch
