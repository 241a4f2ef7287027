// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/communicator.h"

#include <string>
#include <utility>
#include <vector>

#include "crosshatch/base/event_sink.h"
#include "crosshatch/tensor/rank_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Keeps what reaches the engine.
class RecordingCommunicator final : public Communicator {
 public:
  RecordingCommunicator(int rank, std::vector<int> world_ranks)
      : Communicator("tp", rank, std::move(world_ranks)) {}

  absl::StatusOr<std::vector<std::string>> Exchange(
      std::string blob, const std::string&) override {
    return std::vector<std::string>(size(), blob);
  }
  void Abort(absl::Status error) override { aborted = std::move(error); }

  std::vector<Collective> issued;
  std::vector<int64_t> sequences;
  absl::Status aborted;

 protected:
  void IssueChecked(Collective collective, int64_t sequence, Stream&) override {
    issued.push_back(std::move(collective));
    sequences.push_back(sequence);
  }
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
  /// The text of the error with which `collective` is refused.
  std::string Refusal(Collective collective) {
    const absl::Status status = Issue(std::move(collective));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(comm_.issued, IsEmpty());
    return std::string(status.message());
  }

  char memory_[1024];
  RecordingSink sink_;
  RankContext context_{{.world_rank = 4, .world_size = 8, .sink = &sink_}};
  RankContextScope scope_{&context_};
  RecordingCommunicator comm_{1, {2, 4, 6}};
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
  EXPECT_THAT(comm_.sequences, ElementsAre(0, 1, 2, 3, 4, 5, 6));
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
  ASSERT_EQ(comm_.issued.size(), 2u);
  EXPECT_EQ(comm_.issued[0].recv[2][0].data, data + 8);
  EXPECT_EQ(comm_.issued[1].send[1][0].data, data + 4);
  EXPECT_EQ(comm_.issued[1].reduce_op, ReduceOp::kMax);
}

TEST_F(CommunicatorTest, PoisonedRankIssuesNothingAndFailsItsGroup) {
  context_.Poison(absl::DataLossError("boom"));
  EXPECT_TRUE(Barrier(comm_, stream(), "z").ok());
  EXPECT_THAT(comm_.issued, IsEmpty());
  EXPECT_THAT(sink_.lines, IsEmpty());
  EXPECT_EQ(comm_.aborted, absl::DataLossError("boom"));
}

TEST(Communicator, NeedsNoMemoryInADryRun) {
  RankContext context({.device = Device::Meta()});
  RankContextScope scope(&context);
  RecordingCommunicator comm(0, {0, 1});
  EXPECT_TRUE(AllGather(comm, nullptr, nullptr, 4, kFloat32,
                        context.compute_stream(), "w")
                  .ok());
}

}  // namespace
}  // namespace crosshatch
