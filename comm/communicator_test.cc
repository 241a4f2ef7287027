// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/communicator.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/base/event_sink.h"
#include "crosshatch/comm/control_plane.h"
#include "crosshatch/comm/fingerprint.h"
#include "crosshatch/tensor/rank_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// The calls that reached the engine.
struct Recording {
  std::vector<Stream*> bound;
  std::vector<Collective> run;
  std::vector<Fingerprint> fingerprints;
  std::vector<std::string> gathered;
  std::vector<std::string> connecting;
  std::vector<std::string> offered;
  int watched = 0;
  int done = 0;
  absl::Status failed;
  /// The results of the control plane and of the data plane.
  absl::Status result;
  absl::Status issued;
};

class RecordingGroup final : public ControlGroup {
 public:
  RecordingGroup(Recording& recording, int size)
      : recording_(recording), size_(size) {}

  void Bind(Stream& stream) override { recording_.bound.push_back(&stream); }
  absl::Status Agree(const Fingerprint& fingerprint,
                     absl::FunctionRef<void(PayloadRoom)> offer) override {
    recording_.fingerprints.push_back(fingerprint);
    offer([](int, int64_t) -> char* { return nullptr; });
    return recording_.result;
  }
  absl::string_view Of(int) const override { return ""; }
  void Done() override { ++recording_.done; }
  absl::StatusOr<std::vector<std::string>> Gather(
      GatherOrder order, std::string blob, const std::string& what) override {
    (order == GatherOrder::kOfRank ? recording_.gathered
                                   : recording_.connecting)
        .push_back(what);
    if (!recording_.result.ok()) return recording_.result;
    return std::vector<std::string>(static_cast<size_t>(size_), blob);
  }
  void Watch(std::shared_ptr<DataPlane>, bool) override {
    ++recording_.watched;
  }
  absl::Status Fail(const absl::Status& failure) override {
    recording_.failed = failure;
    return failure;
  }

 private:
  Recording& recording_;
  const int size_;
};

class RecordingPlanes final : public DataPlanes {
 public:
  explicit RecordingPlanes(Recording& recording) : recording_(recording) {}

  const std::string& name() const override { return name_; }
  absl::StatusOr<std::unique_ptr<DataPlane>> Connect(
      const GroupKey&, int, RankContext&, absl::Duration,
      Exchange exchange) override {
    const auto blobs = exchange("hello");
    if (!blobs.ok()) return blobs.status();
    return std::make_unique<Plane>(recording_);
  }

 private:
  class Plane final : public DataPlane {
   public:
    explicit Plane(Recording& recording) : recording_(recording) {}
    void Offer(const Collective& collective, PayloadRoom) override {
      recording_.offered.push_back(collective.label);
    }
    absl::Status Issue(const Collective& collective, int64_t, const Payloads&,
                       Stream&) override {
      recording_.run.push_back(collective);
      return recording_.issued;
    }
    void Abort() override {}

   private:
    Recording& recording_;
  };

  const std::string name_ = "recording";
  Recording& recording_;
};

class RecordingSink final : public EventSink {
 public:
  void Write(const LogEvent& event) override {
    lines.push_back(std::string(event.what) + " " + *event.subject + " on " +
                    *event.where + " " + std::to_string(event.bytes));
  }
  std::vector<std::string> lines;
};

class CommunicatorTest : public testing::Test {
 protected:
  SegmentList List(int64_t count) {
    return {{.data = memory_, .run_elems = count}};
  }
  Stream& stream() { return context_.compute_stream(); }
  absl::Status Issue(Collective collective) {
    return comm_.Issue(std::move(collective), stream());
  }
  /// Returns the error that refuses `collective`.
  std::string Refusal(Collective collective) {
    const absl::Status status = Issue(std::move(collective));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(recording_.run, IsEmpty());
    return std::string(status.message());
  }

  char memory_[1024];
  RecordingSink sink_;
  RankContext context_{{.world_rank = 4, .world_size = 8, .sink = &sink_}};
  RankContextScope scope_{&context_};
  Recording recording_;
  RecordingPlanes planes_{recording_};
  Communicator comm_{{"tp", {2, 4, 6}, "compute"},
                     1,
                     context_,
                     std::make_unique<RecordingGroup>(recording_, 3),
                     planes_,
                     absl::Minutes(1)};
};

TEST_F(CommunicatorTest, DescribesItself) {
  EXPECT_EQ(comm_.Describe(), "group 'tp' (ranks 2, 4, 6)");
  EXPECT_EQ(comm_.size(), 3);
}

TEST_F(CommunicatorTest, CountsLogsAndNumbersWhatItIssues) {
  ASSERT_TRUE(Issue({.kind = CollectiveKind::kAllGather,
                     .label = "w",
                     .send = {List(5)},
                     .recv = {List(2), List(5), List(3)}})
                  .ok());
  ASSERT_TRUE(Issue({.kind = CollectiveKind::kReduceScatter,
                     .dtype = kBFloat16,
                     .label = "g",
                     .send = {List(1), List(7), List(2)},
                     .recv = {List(7)}})
                  .ok());
  // Pieces of 10 elements for three ranks: 3, 3 and 4.
  ASSERT_TRUE(Issue({.kind = CollectiveKind::kAllReduce,
                     .label = "n",
                     .send = {List(10)},
                     .recv = {List(10)}})
                  .ok());
  ASSERT_TRUE(Issue({.kind = CollectiveKind::kAllToAll,
                     .label = "t",
                     .send = {List(1), List(2), List(3)},
                     .recv = {List(4), List(2), {}}})
                  .ok());
  ASSERT_TRUE(Issue({.kind = CollectiveKind::kBroadcast,
                     .root = 2,
                     .label = "b",
                     .recv = {List(6)}})
                  .ok());
  ASSERT_TRUE(Issue({.kind = CollectiveKind::kBroadcast,
                     .root = 1,
                     .label = "c",
                     .send = {List(6)}})
                  .ok());
  ASSERT_TRUE(Barrier(comm_, stream(), "z").ok());
  EXPECT_THAT(sink_.lines,
              ElementsAre("all_gather w on tp 20", "reduce_scatter g on tp 28",
                          "all_reduce n on tp 52", "all_to_all t on tp 16",
                          "broadcast b on tp 24", "broadcast c on tp 0",
                          "barrier z on tp 0"));
  std::vector<int64_t> sequences;
  for (const Fingerprint& fingerprint : recording_.fingerprints) {
    sequences.push_back(fingerprint.sequence);
  }
  EXPECT_THAT(sequences, ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_EQ(Describe(recording_.fingerprints[2]),
            "all_reduce #2 'n' (f32, sum)");
  EXPECT_THAT(recording_.bound, ElementsAre(&stream())) << "once";
  const auto count = [&](CollectiveKind kind) {
    return comm_.stats().by_kind[static_cast<int>(kind)];
  };
  EXPECT_EQ(count(CollectiveKind::kBroadcast).calls, 2);
  EXPECT_EQ(count(CollectiveKind::kBroadcast).bytes, 24);
  EXPECT_EQ(count(CollectiveKind::kAllReduce).bytes, 52);
}

TEST_F(CommunicatorTest, PiecesOfAnAllReduceCoverItOnce) {
  for (int n = 1; n <= 7; ++n) {
    for (int64_t count : {0, 1, 3, 7, 13, 1000}) {
      EXPECT_EQ(PieceBegin(count, n, 0), 0);
      EXPECT_EQ(PieceBegin(count, n, n), count);
      for (int r = 0; r < n; ++r) {
        const int64_t piece =
            PieceBegin(count, n, r + 1) - PieceBegin(count, n, r);
        EXPECT_GE(piece, count / n);
        EXPECT_LE(piece, count / n + 1);
      }
    }
  }
  EXPECT_EQ(PieceBegin(int64_t{1} << 62, 4, 3), 3 * (int64_t{1} << 60));
}

TEST_F(CommunicatorTest, RefusesListsThatDoNotFitTheKind) {
  EXPECT_THAT(Refusal({.kind = CollectiveKind::kAllGather,
                       .label = "w",
                       .send = {List(5)},
                       .recv = {List(5)}}),
              HasSubstr("all_gather 'w' in group 'tp' (ranks 2, 4, 6), rank 4: "
                        "has 1 send and 1 recv lists instead of 1 and 3"));
  EXPECT_THAT(Refusal({.kind = CollectiveKind::kAllGather,
                       .send = {List(5)},
                       .recv = {List(5), List(4), List(5)}}),
              HasSubstr("5 elements and its own recv 4"));
  EXPECT_THAT(Refusal({.kind = CollectiveKind::kAllReduce,
                       .send = {List(5)},
                       .recv = {List(6)}}),
              HasSubstr("send[0] has 5 elements and recv[0] 6"));
  EXPECT_THAT(Refusal({.kind = CollectiveKind::kReduceScatter,
                       .send = {List(5), List(6), List(7)},
                       .recv = {List(5)}}),
              HasSubstr("its own send has 6 elements and recv[0] 5"));
  EXPECT_THAT(Refusal({.kind = CollectiveKind::kAllToAll,
                       .send = {List(5), List(6), List(7)},
                       .recv = {List(5), List(5), List(5)}}),
              HasSubstr("its own send has 6 elements and its own recv 5"));
  EXPECT_THAT(Refusal({.kind = CollectiveKind::kBarrier, .send = {List(1)}}),
              HasSubstr("instead of 0 and 0"));
}

TEST_F(CommunicatorTest, RefusesBroadcastsWithoutARoot) {
  EXPECT_THAT(
      Refusal(
          {.kind = CollectiveKind::kBroadcast, .root = 3, .recv = {List(1)}}),
      HasSubstr("root 3 is no member of a group of 3"));
  EXPECT_THAT(
      Refusal(
          {.kind = CollectiveKind::kBroadcast, .root = 1, .recv = {List(1)}}),
      HasSubstr("the root takes one send list"));
  EXPECT_THAT(Refusal({.kind = CollectiveKind::kBroadcast, .root = 0}),
              HasSubstr("takes one recv list"));
}

TEST_F(CommunicatorTest, RefusesBadSegments) {
  const auto reduce = [](Segment s) {
    return Collective{
        .kind = CollectiveKind::kAllReduce, .send = {{s}}, .recv = {{s}}};
  };
  EXPECT_THAT(Refusal(reduce({.data = memory_, .run_elems = -1})),
              HasSubstr("1 runs of -1 elements"));
  EXPECT_THAT(
      Refusal(reduce(
          {.data = memory_, .run_elems = 4, .runs = 2, .stride_elems = 3})),
      HasSubstr("overlap at a stride of 3"));
  EXPECT_THAT(Refusal(reduce({.data = memory_,
                              .run_elems = int64_t{1} << 32,
                              .runs = int64_t{1} << 32,
                              .stride_elems = int64_t{1} << 32})),
              HasSubstr("larger than any memory"));
  EXPECT_THAT(Refusal(reduce({.run_elems = 4})),
              HasSubstr("4 elements has no memory"));
}

TEST_F(CommunicatorTest, RefusesReductionsThatDoNotExist) {
  Collective c{.kind = CollectiveKind::kAllReduce,
               .dtype = kBool,
               .send = {List(1)},
               .recv = {List(1)}};
  EXPECT_THAT(Refusal(c), HasSubstr("of bool"));
  c.dtype = kInt32;
  c.reduce_op = ReduceOp::kAvg;
  EXPECT_THAT(Refusal(c), HasSubstr("need floating point, not i32"));
  c.reduce_op = ReduceOp::kSum;
  c.scale = 0.5;
  EXPECT_THAT(Refusal(c), HasSubstr("need floating point, not i32"));
}

TEST_F(CommunicatorTest, HelpersCutContiguousMemory) {
  float data[12];
  ASSERT_TRUE(AllGather(comm_, data, data, 4, kFloat32, stream(), "g").ok());
  ASSERT_TRUE(ReduceScatter(comm_, data, data, 4, kFloat32, ReduceOp::kMax,
                            stream(), "s")
                  .ok());
  ASSERT_EQ(recording_.run.size(), 2u);
  EXPECT_EQ(recording_.run[0].recv[2][0].data, data + 8);
  EXPECT_EQ(recording_.run[1].send[1][0].data, data + 4);
  EXPECT_EQ(recording_.run[1].reduce_op, ReduceOp::kMax);
}

TEST_F(CommunicatorTest, PoisonedRankIssuesNothingAndFailsItsGroup) {
  context_.Poison(absl::DataLossError("boom"));
  EXPECT_TRUE(Barrier(comm_, stream(), "z").ok());
  EXPECT_THAT(recording_.run, IsEmpty());
  EXPECT_THAT(sink_.lines, IsEmpty());
  EXPECT_EQ(recording_.failed,
            absl::DataLossError(
                "group 'tp' (ranks 2, 4, 6) was aborted by rank 4: boom"));
}

TEST_F(CommunicatorTest, PoisonOnTheWayToTheStreamFailsTheGroup) {
  Stream& side = context_.SideStream("side");
  side.Launch(
      [&](KernelContext&) { context_.Poison(absl::AbortedError("x")); });
  EXPECT_TRUE(Barrier(comm_, side, "z").ok());
  EXPECT_EQ(context_.Synchronize(), absl::AbortedError("x"));
  EXPECT_THAT(recording_.run, IsEmpty());
  EXPECT_EQ(recording_.failed.code(), absl::StatusCode::kAborted);
}

TEST_F(CommunicatorTest, AnErrorOfTheEnginePoisonsTheRank) {
  recording_.result = absl::UnavailableError("cable cut");
  EXPECT_TRUE(Barrier(comm_, stream(), "z").ok());
  EXPECT_EQ(context_.Synchronize(), absl::UnavailableError("cable cut"));
}

TEST_F(CommunicatorTest, ExchangeGivesTheBlobsOfAll) {
  const auto blobs = comm_.Exchange(std::string("a\0b", 3), "sizes");
  ASSERT_TRUE(blobs.ok()) << blobs.status();
  EXPECT_THAT(*blobs, testing::Each(std::string("a\0b", 3)));
  EXPECT_EQ(blobs->size(), 3u);
  EXPECT_THAT(recording_.gathered, ElementsAre("exchange 'sizes'"));
}

TEST_F(CommunicatorTest, PoisonedRankExchangesNothing) {
  context_.Poison(absl::DataLossError("boom"));
  EXPECT_EQ(comm_.Exchange("", "x").status(), absl::DataLossError("boom"));
  EXPECT_THAT(recording_.gathered, IsEmpty());
  EXPECT_EQ(recording_.failed.code(), absl::StatusCode::kDataLoss);
}

TEST_F(CommunicatorTest, AnErrorOfAnExchangePoisonsTheRank) {
  recording_.result = absl::UnavailableError("cable cut");
  EXPECT_FALSE(comm_.Exchange("", "x").ok());
  EXPECT_EQ(context_.status(), absl::UnavailableError("cable cut"));
}

using CommunicatorDeathTest = CommunicatorTest;

TEST_F(CommunicatorDeathTest, OneCommunicatorIsForTheThreadOfOneRank) {
  RankContext other({.world_rank = 5, .world_size = 8});
  const RankContextScope scope(&other);
  EXPECT_DEATH(Barrier(comm_, other.compute_stream(), "z").IgnoreError(),
               "group 'tp' \\(ranks 2, 4, 6\\) of rank 4 is used by a thread "
               "that is not the rank's");
}

TEST_F(CommunicatorTest, ConnectsItsPlaneAtTheFirstCollective) {
  EXPECT_THAT(recording_.connecting, IsEmpty());
  for (const char* label : {"a", "b"}) {
    ASSERT_TRUE(Barrier(comm_, stream(), label).ok());
  }
  EXPECT_THAT(recording_.connecting,
              ElementsAre("the connection of its data plane"));
  EXPECT_EQ(recording_.watched, 1);
  EXPECT_THAT(recording_.offered, ElementsAre("b"));
  EXPECT_EQ(recording_.run.size(), 2u);
  EXPECT_EQ(recording_.done, 2);
}

TEST_F(CommunicatorTest, AnErrorOfThePlaneFailsTheGroup) {
  recording_.issued = absl::UnavailableError("cable cut");
  ASSERT_TRUE(Barrier(comm_, stream(), "a").ok());
  EXPECT_EQ(context_.status(), recording_.issued);
  EXPECT_EQ(recording_.failed, recording_.issued);
  EXPECT_EQ(recording_.done, 0);
}

TEST(Communicator, NeedsNoMemoryInADryRun) {
  RankContext context({.dry_run = true});
  RankContextScope scope(&context);
  Recording recording;
  RecordingPlanes planes(recording);
  Communicator comm({"tp", {0, 1}, "compute"}, 0, context,
                    std::make_unique<RecordingGroup>(recording, 2), planes,
                    absl::Minutes(1));
  EXPECT_TRUE(AllGather(comm, nullptr, nullptr, 4, kFloat32,
                        context.compute_stream(), "w")
                  .ok());
}

}  // namespace
}  // namespace crosshatch
