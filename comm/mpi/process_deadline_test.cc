// SPDX-License-Identifier: Apache-2.0
//
// Data planes and ranks that do not go on in the engine of processes, with
// threads as processes.

#include <atomic>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/data_plane.h"
#include "crosshatch/comm/mpi/run_loopback_testutil.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

using testing::HasSubstr;

/// Moves nothing, and hangs in collectives whose label is "hang".
class HangingPlanes final : public DataPlanes {
 public:
  const std::string& name() const override { return name_; }
  absl::StatusOr<std::unique_ptr<DataPlane>> Connect(
      const GroupKey& key, int member, RankContext&, absl::Duration,
      Exchange exchange) override {
    for (const int round : {0, 1}) {
      CH_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                          exchange(absl::StrCat(key.stream_name, member)));
      for (int r = 0; r < key.size(); ++r) {
        EXPECT_EQ(all[r], absl::StrCat(key.stream_name, r)) << round;
      }
    }
    return std::make_unique<Plane>();
  }

 private:
  class Plane final : public DataPlane {
   public:
    absl::Status Issue(const Collective& collective, int64_t, const Payloads&,
                       Stream&) override {
      if (collective.label != "hang") return absl::OkStatus();
      SleepUntil([this] { return is_aborted_.load(); });
      return absl::AbortedError("no more");
    }
    void Abort() override { is_aborted_ = true; }

   private:
    std::atomic<bool> is_aborted_ = false;
  };

  const std::string name_ = "hanging";
};

/// A plane connects in its stream's first collective, in any order of streams,
/// with a deadline.
TEST(ProcessDeadlineTest, ADataPlaneThatHangsEndsByTheTimeout) {
  LoopbackWire wire({.size = 2});
  HangingPlanes planes[2];
  const auto results = RunLoopback(
      wire, 2,
      [](World& world) -> absl::Status {
        EXPECT_EQ(world.engine(), "hanging");
        CH_ASSIGN_OR_RETURN(auto a, world.Group("x", {0, 1}, "a"));
        CH_ASSIGN_OR_RETURN(auto b, world.Group("x", {0, 1}, "b"));
        Communicator* const order[] = {a.get(), b.get()};
        for (const int i : {0, 1}) {
          const int at = (i + world.rank()) % 2;
          CH_RETURN_IF_ERROR(Barrier(
              *order[at], world.context().SideStream(at == 0 ? "a" : "b"),
              "first"));
        }
        CH_RETURN_IF_ERROR(world.context().Synchronize());
        CH_RETURN_IF_ERROR(
            Barrier(*a, world.context().SideStream("a"), "hang"));
        return world.context().Synchronize();
      },
      [&](int rank) {
        return MpiOptions{.job = {.timeout = absl::Milliseconds(300)},
                          .planes = &planes[rank]};
      });
  for (const ProcessResult& result : results) {
    EXPECT_TRUE(result.ended_together);
    EXPECT_EQ(result.status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(result.status.message()),
                HasSubstr("group 'x' (ranks 0, 1) timed out after 300ms: on "
                          "rank "));
    EXPECT_THAT(std::string(result.status.message()),
                HasSubstr("the data of barrier #1 'hang' are not in place"));
  }
}

/// Runs one collective that hangs, the only one of a group of `size`.
void ExpectFirstCollectiveTimesOut(int size) {
  LoopbackWire wire({.size = size});
  std::vector<HangingPlanes> planes(static_cast<size_t>(size));
  const auto results = RunLoopback(
      wire, size,
      [size](World& world) -> absl::Status {
        std::vector<int> ranks(static_cast<size_t>(size));
        std::iota(ranks.begin(), ranks.end(), 0);
        CH_ASSIGN_OR_RETURN(auto group, world.Group("x", ranks, "a"));
        CH_RETURN_IF_ERROR(
            Barrier(*group, world.context().SideStream("a"), "hang"));
        return world.context().Synchronize();
      },
      [&](int rank) {
        return MpiOptions{.job = {.timeout = absl::Milliseconds(300)},
                          .planes = &planes[static_cast<size_t>(rank)]};
      });
  for (const ProcessResult& result : results) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(result.status.message()),
                HasSubstr("timed out after 300ms"));
  }
}

TEST(ProcessDeadlineTest, ADataPlaneThatHangsAtOnceEndsByTheTimeout) {
  ExpectFirstCollectiveTimesOut(2);
}

TEST(ProcessDeadlineTest, ADataPlaneOfOneRankThatHangsEndsByTheTimeout) {
  ExpectFirstCollectiveTimesOut(1);
}

TEST(ProcessDeadlineTest, ARankThatComputesForEverAfterTheOthersFailsTheJob) {
  LoopbackWire wire({.size = 3});
  const auto results = RunLoopback(
      wire, 3,
      [](World& world) -> absl::Status {
        if (world.rank() != 1) return absl::OkStatus();
        SleepUntil([&] { return world.context().poisoned(); });
        return absl::OkStatus();
      },
      [](int) {
        return MpiOptions{.job = {.timeout = absl::Milliseconds(300)}};
      });
  for (const ProcessResult& result : results) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(result.status.message()),
                HasSubstr("rank 1: its function goes on, and has been in no "
                          "collective for 300ms; rank 0, which has finished, "
                          "waits for it"));
  }
}

}  // namespace
}  // namespace crosshatch::internal
