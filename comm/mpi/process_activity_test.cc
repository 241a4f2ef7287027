// SPDX-License-Identifier: Apache-2.0
//
// What a rank that is a process reports of its collectives: its activity for
// failures, and spans for traces.

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/event_sink.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/mpi/run_loopback_testutil.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(ProcessActivityTest, ActivityNamesTheLastCollective) {
  LoopbackWire wire({.size = 2});
  FailureChannelForTest channels[2];
  std::vector<std::string> said[2];
  const auto results = RunLoopback(
      wire, 2,
      [&](World& world) -> absl::Status {
        const auto ask = [&, rank = world.rank()] {
          said[rank].push_back(channels[rank].Query());
        };
        ask();
        CH_ASSIGN_OR_RETURN(auto comm,
                            world.Group("all", world.AllRanks(), "comm"));
        CH_RETURN_IF_ERROR(comm->Exchange("", "stop").status());
        ask();
        CH_RETURN_IF_ERROR(
            Barrier(*comm, world.context().SideStream("comm"), "step"));
        CH_RETURN_IF_ERROR(world.context().Synchronize());
        ask();
        return absl::OkStatus();
      },
      [&](int rank) { return MpiOptions{.failure_channel = &channels[rank]}; });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(results[rank].status.ok()) << results[rank].status;
    const std::string of_group = " of group 'all' (ranks 0, 1)";
    EXPECT_THAT(said[rank],
                ElementsAre("before its first collective",
                            "computing, after exchange 'stop'" + of_group,
                            "computing, after barrier #0 'step'" + of_group));
  }
}

TEST(ProcessActivityTest, ActivityNamesTheCurrentCollective) {
  LoopbackWire wire({.size = 2});
  FailureChannelForTest channels[2];
  RunLoopback(
      wire, 2,
      [&](World& world) -> absl::Status {
        FailureChannelForTest& channel = channels[world.rank()];
        EXPECT_EQ(channel.Query(), "before its first collective");
        LongGather gather(world);
        CH_RETURN_IF_ERROR(gather.Issue());
        CH_RETURN_IF_ERROR(world.context().Synchronize());
        EXPECT_EQ(channel.Query(),
                  "computing, after all_gather #0 'weights' (f32) of group "
                  "'all' (ranks 0, 1)");
        if (world.rank() == 0) return absl::OkStatus();
        SleepUntil([&] { return channels[0].Query() == "finished"; });
        return absl::OkStatus();
      },
      [&](int rank) { return MpiOptions{.failure_channel = &channels[rank]}; });
  EXPECT_EQ(channels[0].Query(), "") << "the job is over";
}

/// Records the spans of one rank as text.
class SpansForTest : public EventSink {
 public:
  explicit SpansForTest(bool wants_spans) : wants_spans_(wants_spans) {}

  void Write(const LogEvent& event) override {
    const bool begins = event.kind == EventKind::kSpanBegin;
    if (!begins && event.kind != EventKind::kSpanEnd) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    spans_.push_back(absl::StrCat(begins ? "+ " : "- ", event.what, " ",
                                  *event.subject, " on ", *event.where));
  }
  bool wants_spans() const override { return wants_spans_; }

  /// Call after the job.
  const std::vector<std::string>& spans() const { return spans_; }

 private:
  const bool wants_spans_;
  std::mutex mutex_;
  std::vector<std::string> spans_;
};

TEST(ProcessActivityTest, TracesShowWhatComparingTakes) {
  LoopbackWire wire({.size = 2});
  SpansForTest wanted(true), unwanted(false);
  const auto results = RunLoopback(
      wire, 2,
      [&](World& world) -> absl::Status {
        LongGather gather(world);
        CH_RETURN_IF_ERROR(gather.Issue());
        return world.context().Synchronize();
      },
      [&](int) {
        return MpiOptions{.job = {.sinks = {&wanted, &unwanted}}};
      });
  EXPECT_TRUE(results[0].status.ok()) << results[0].status;
  // Writing its own fingerprint, and comparing those of the others.
  EXPECT_THAT(wanted.spans(),
              ElementsAre("+ collective all_gather all on comm",
                          "+ comparing  on comm", "- comparing  on comm",
                          "+ comparing  on comm", "- comparing  on comm",
                          "- collective all_gather all on comm"));
  EXPECT_THAT(unwanted.spans(), IsEmpty());
}

/// Two columns of four: packed by the sender, unpacked by the receiver, and
/// contiguous on both sides.
TEST(ProcessActivityTest, TracesShowWhatPackingTakes) {
  constexpr int64_t kRows = 1000;
  for (const bool strided : {true, false}) {
    LoopbackWire wire({.size = 2});
    SpansForTest spans[2] = {SpansForTest(true), SpansForTest(true)};
    const auto results = RunLoopback(
        wire, 2,
        [&](World& world) -> absl::Status {
          std::vector<float> memory(4 * kRows);
          const Segment columns = {.data = memory.data(),
                                   .run_elems = 2,
                                   .runs = kRows,
                                   .stride_elems = 4};
          const Segment run = {.data = memory.data(), .run_elems = 2 * kRows};
          const SegmentList list = {strided ? columns : run};
          CH_ASSIGN_OR_RETURN(auto comm,
                              world.Group("all", world.AllRanks(), "comm"));
          Collective broadcast = {
              .kind = CollectiveKind::kBroadcast, .label = "w", .recv = {list}};
          if (world.rank() == 0) broadcast.send = {list};
          CH_RETURN_IF_ERROR(comm->Issue(std::move(broadcast),
                                         world.context().SideStream("comm")));
          return world.context().Synchronize();
        },
        [&](int) {
          return MpiOptions{.job = {.sinks = {&spans[0], &spans[1]}}};
        });
    EXPECT_TRUE(results[0].status.ok()) << results[0].status;
    for (const SpansForTest& of_rank : spans) {
      EXPECT_EQ(std::count(of_rank.spans().begin(), of_rank.spans().end(),
                           "+ packing  on comm"),
                strided ? 1 : 0);
    }
  }
}

}  // namespace
}  // namespace crosshatch::internal
