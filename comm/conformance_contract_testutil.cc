// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/base/event_sink.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/conformance_suite_testutil.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

template <typename... Parts>
absl::Status Wrong(const Parts&... parts) {
  return absl::DataLossError(absl::StrCat(parts...));
}

absl::Status ExpectSays(const absl::Status& status, absl::StatusCode code,
                        const std::string& text) {
  if (status.code() == code &&
      status.message().find(text) != absl::string_view::npos) {
    return absl::OkStatus();
  }
  return Wrong("'", status.ToString(), "' does not contain '", text, "'");
}

/// Returns lists of different lengths, one of them empty.
CollectiveCase Uneven(CollectiveKind kind, int n, uint64_t seed) {
  CollectiveCase c{.kind = kind,
                   .dtype = seed % 2 == 0 ? kFloat32 : kBFloat16,
                   .root = static_cast<int>(seed % static_cast<uint64_t>(n)),
                   .seed = seed};
  const bool one =
      kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kBroadcast;
  for (int i = 0; i < NumCounts(kind, n); ++i) {
    c.counts.push_back(i * 5 % 7 + (one ? 11 : 0));
  }
  return c;
}

int64_t ElementsReceived(const CollectiveCase& c, int me, int n) {
  int64_t elems = 0;
  for (int r = 0; r < n; ++r) {
    if (r == me) continue;
    switch (c.kind) {
      case CollectiveKind::kAllGather:
        elems += c.counts[r];
        break;
      case CollectiveKind::kReduceScatter:
        elems += c.counts[me];
        break;
      case CollectiveKind::kAllReduce:
        // The summand of each element of this rank's piece, then r's piece.
        elems += PieceBegin(c.counts[0], n, me + 1) -
                 PieceBegin(c.counts[0], n, me) +
                 PieceBegin(c.counts[0], n, r + 1) -
                 PieceBegin(c.counts[0], n, r);
        break;
      case CollectiveKind::kAllToAll:
        elems += c.counts[r * n + me];
        break;
      case CollectiveKind::kBroadcast:
        if (r == c.root) elems += c.counts[0];
        break;
      case CollectiveKind::kBarrier:
        break;
    }
  }
  return elems;
}

class CollectiveSink final : public EventSink {
 public:
  void Write(const LogEvent& event) override {
    if (event.kind != EventKind::kCollective) return;
    lines.push_back(absl::StrCat(event.what, " ", *event.subject, " on ",
                                 *event.where, " ", event.bytes));
  }
  std::vector<std::string> lines;
};

/// Sends the rank's events to a sink in the scope.
class SinkScope {
 public:
  explicit SinkScope(RankContext& context)
      : context_(context), previous_(context.sink()) {
    context.set_sink(&sink_);
  }
  ~SinkScope() { context_.set_sink(previous_); }
  SinkScope(const SinkScope&) = delete;
  SinkScope& operator=(const SinkScope&) = delete;
  const std::vector<std::string>& lines() const { return sink_.lines; }

 private:
  RankContext& context_;
  EventSink* const previous_;
  CollectiveSink sink_;
};

absl::Status CountsAndLogs(ConformanceRank& rank) {
  const SinkScope sink(rank.context());
  std::vector<std::string> lines;
  CommunicatorStats want;
  uint64_t seed = 0;
  for (int round = 0; round < 3; ++round) {
    for (CollectiveKind kind : kDataKinds) {
      const CollectiveCase c = Uneven(kind, rank.size(), ++seed);
      CollectiveRun run = rank.Prepare(c);
      CH_RETURN_IF_ERROR(run.Issue(rank.stream()));
      const int64_t bytes =
          ElementsReceived(c, rank.rank(), rank.size()) * SizeOf(c.dtype);
      ++want.by_kind[static_cast<int>(kind)].calls;
      want.by_kind[static_cast<int>(kind)].bytes += bytes;
      lines.push_back(
          absl::StrCat(Name(kind), " ", c.Describe(), " on all ", bytes));
      CH_RETURN_IF_ERROR(rank.context().Synchronize());
    }
    CH_RETURN_IF_ERROR(rank.IssueBarrier("round"));
    ++want.by_kind[static_cast<int>(CollectiveKind::kBarrier)].calls;
    lines.push_back("barrier round on all 0");
  }
  for (int k = 0; k < kNumCollectiveKinds; ++k) {
    const auto& got = rank.comm().stats().by_kind[k];
    if (got.calls != want.by_kind[k].calls ||
        got.bytes != want.by_kind[k].bytes) {
      return Wrong(Name(static_cast<CollectiveKind>(k)), ": ", got.calls,
                   " calls and ", got.bytes, " bytes instead of ",
                   want.by_kind[k].calls, " and ", want.by_kind[k].bytes);
    }
  }
  for (size_t i = 0; i < lines.size() || i < sink.lines().size(); ++i) {
    const std::string got = i < sink.lines().size() ? sink.lines()[i] : "";
    const std::string line = i < lines.size() ? lines[i] : "";
    if (got != line) return Wrong("logged '", got, "' instead of '", line, "'");
  }
  return rank.context().Synchronize();
}

/// An invalid collective is refused on every rank, gets no sequence number and
/// is not counted. Later ones work.
absl::Status RefusesWhatCannotBe(ConformanceRank& rank) {
  RankContext& context = rank.context();
  const Block block = context.allocator().Allocate(
      4096, MemoryClass::kCommunication, context.compute_stream());
  CH_RETURN_IF_ERROR(context.Synchronize());
  const auto list = [&](int64_t elems) {
    return SegmentList{{.data = block.data(), .run_elems = elems}};
  };
  const auto n = static_cast<size_t>(rank.size());
  const std::vector<SegmentList> too_many(n + 1, list(4));
  Collective bad[] = {
      {.kind = CollectiveKind::kAllGather, .send = {list(4)}, .recv = too_many},
      {.kind = CollectiveKind::kReduceScatter,
       .send = too_many,
       .recv = {list(4)}},
      {.kind = CollectiveKind::kAllReduce,
       .send = {list(4)},
       .recv = {list(5)}},
      {.kind = CollectiveKind::kAllToAll, .send = too_many, .recv = too_many},
      {.kind = CollectiveKind::kBroadcast,
       .root = rank.size(),
       .recv = {list(4)}},
      {.kind = CollectiveKind::kBarrier, .send = {list(1)}},
      {.kind = CollectiveKind::kAllReduce,
       .send = {list(-1)},
       .recv = {list(-1)}},
      {.kind = CollectiveKind::kAllReduce,
       .dtype = kBool,
       .send = {list(4)},
       .recv = {list(4)}},
      {.kind = CollectiveKind::kAllReduce,
       .dtype = kInt32,
       .reduce_op = ReduceOp::kAvg,
       .send = {list(4)},
       .recv = {list(4)}},
      {.kind = CollectiveKind::kAllReduce,
       .send = {list(int64_t{1} << 60)},
       .recv = {list(int64_t{1} << 60)}}};
  for (Collective& c : bad) {
    c.label = "wrong";
    const std::string said =
        absl::StrCat(Name(c.kind), " 'wrong' in ", rank.comm().Describe(),
                     ", rank ", rank.rank(), ": ");
    CH_RETURN_IF_ERROR(ExpectSays(rank.comm().Issue(c, rank.stream()),
                                  absl::StatusCode::kInvalidArgument, said));
  }
  for (const auto& count : rank.comm().stats().by_kind) {
    if (count.calls != 0) return Wrong("what was refused has been counted");
  }
  return rank.Run({.kind = CollectiveKind::kAllReduce, .counts = {100}});
}

absl::Status ExchangesOfAnySize(ConformanceRank& rank) {
  for (size_t size : {0, 1, 8, 4097}) {
    const std::string mine(size, static_cast<char>('a' + rank.rank() % 26));
    CH_ASSIGN_OR_RETURN(const std::vector<std::string> blobs,
                        rank.comm().Exchange(mine, ""));
    if (blobs.size() != static_cast<size_t>(rank.size()) ||
        blobs[static_cast<size_t>(rank.rank())] != mine) {
      return Wrong(blobs.size(), " blobs of ", size, " bytes");
    }
  }
  return absl::OkStatus();
}

absl::Status GroupsByKey(ConformanceRank& rank) {
  const std::vector<int> all = rank.world().AllRanks();
  CH_ASSIGN_OR_RETURN(auto a, rank.world().Group("x", all, "a"));
  CH_ASSIGN_OR_RETURN(auto b, rank.world().Group("x", all, "b"));
  CH_ASSIGN_OR_RETURN(auto a_again, rank.world().Group("x", all, "a"));
  if (a != a_again || a == b) return Wrong("groups are not by key");
  if (rank.world().groups().size() != 3 || rank.world().groups()[2] != b) {
    return Wrong("groups are not listed as they were made");
  }
  if (a->rank() != rank.rank() || a->size() != rank.size() ||
      a->world_ranks() != all) {
    return Wrong("another place in ", a->Describe());
  }
  for (const std::vector<int>& ranks :
       std::vector<std::vector<int>>{{},
                                     {rank.rank(), rank.rank()},
                                     {rank.rank(), rank.size()},
                                     {rank.rank(), -1}}) {
    CH_RETURN_IF_ERROR(ExpectSays(rank.world().Group("y", ranks, "a").status(),
                                  absl::StatusCode::kInvalidArgument, "'y'"));
  }
  return absl::OkStatus();
}

/// Creates the world of the even ranks and that of the odd ones, last rank
/// first.
absl::Status WorldsOfSomeRanks(ConformanceRank& rank) {
  const int me = rank.rank();
  std::vector<int> mine;
  std::vector<int> others;
  for (int r = rank.size() - 1; r >= 0; --r) {
    (r % 2 == me % 2 ? mine : others).push_back(r);
  }
  CH_ASSIGN_OR_RETURN(World* const some, rank.world().Subset(mine));
  const auto index = static_cast<size_t>(some->rank());
  if (some->AllRanks() != mine || mine[index] != me ||
      some->size() != static_cast<int>(mine.size()) ||
      some->world_rank() != me || some->Contains(rank.size()) ||
      (!others.empty() && some->Contains(others[0]))) {
    return Wrong("another world than of ", absl::StrJoin(mine, ", "));
  }
  CH_ASSIGN_OR_RETURN(World* const again, rank.world().Subset(mine));
  CH_ASSIGN_OR_RETURN(World* const within, some->Subset({me}));
  if (again != some || within->rank() != 0 || within->size() != 1) {
    return Wrong("worlds are not by ranks");
  }
  for (const std::vector<int>& ranks : std::vector<std::vector<int>>{
           {}, others, {me, me}, {me, rank.size()}, {me, -1}}) {
    CH_RETURN_IF_ERROR(ExpectSays(rank.world().Subset(ranks).status(),
                                  absl::StatusCode::kInvalidArgument,
                                  "'world'"));
  }
  if (!others.empty()) {
    const std::string said = absl::StrCat("names rank ", others[0],
                                          " in the world of ranks ", mine[0]);
    const std::vector<int> pair = {others[0], me};
    for (const absl::Status& refused :
         {some->Subset(pair).status(), some->Group("y", pair, "a").status()}) {
      CH_RETURN_IF_ERROR(
          ExpectSays(refused, absl::StatusCode::kInvalidArgument, said));
    }
  }
  ConformanceRank of_some(rank.engine(), *some);
  const Communicator& comm = of_some.comm();
  if (comm.rank() != some->rank() || comm.world_ranks() != mine ||
      some->groups() != rank.world().groups()) {
    return Wrong("another place in ", comm.Describe());
  }
  CollectiveCase gather{.kind = CollectiveKind::kAllGather};
  for (size_t i = 0; i < mine.size(); ++i) {
    gather.counts.push_back(static_cast<int64_t>(7 * i));
  }
  return of_some.Run(gather);
}

/// A poisoned rank counts and exchanges nothing, and returns the error instead
/// of a result.
absl::Status PoisonedBefore(ConformanceRank& rank) {
  rank.context().Poison(absl::OutOfRangeError("not a number"));
  // A peer may have failed first.
  const absl::Status poison = rank.context().status();
  CH_RETURN_IF_ERROR(ExpectSays(poison, poison.code(), "not a number"));
  CH_RETURN_IF_ERROR(rank.IssueBarrier("b"));
  for (const auto& count : rank.comm().stats().by_kind) {
    if (count.calls != 0) return Wrong("a poisoned rank counts");
  }
  if (rank.comm().Exchange("", "x").status() != poison) {
    return Wrong("a poisoned rank exchanges");
  }
  if (rank.context().Synchronize() != poison) return Wrong("lost poison");
  return poison;
}

absl::Status AbortsItsGroup(ConformanceRank& rank) {
  rank.comm().Abort(absl::UnavailableError("cable cut"));
  return ExpectSays(
      rank.context().Synchronize(), absl::StatusCode::kUnavailable,
      absl::StrCat(rank.comm().Describe(), " was aborted by rank "));
}

absl::Status AbortsTheJob(ConformanceRank& rank) {
  rank.world().Abort(absl::UnavailableError("cable cut"));
  const absl::Status poison = rank.context().Synchronize();
  return ExpectSays(poison, poison.code(), "cable cut");
}

absl::Status UsesTwoStreams(ConformanceRank& rank) {
  CH_RETURN_IF_ERROR(rank.IssueBarrier("b"));
  return Barrier(rank.comm(), rank.context().SideStream("other"), "b");
}

}  // namespace

void RegisterContract(const EnginePtr& engine, int ranks) {
  /// \param failure part of the job's error; empty for success.
  const auto add = [&](const std::string& name, const Body& body,
                       const std::string& failure = "") {
    Register(engine, name, ranks, [=] {
      const absl::Status status = RunRanks(*engine, ranks, body);
      EXPECT_EQ(status.ok(), failure.empty()) << status;
      EXPECT_THAT(std::string(status.message()), testing::HasSubstr(failure));
      EXPECT_NE(status.code(), absl::StatusCode::kDataLoss) << status;
    });
  };
  add("CountsAndLogs", CountsAndLogs);
  add("RefusesWhatCannotBe", RefusesWhatCannotBe);
  add("ExchangesOfAnySize", ExchangesOfAnySize);
  add("GroupsByKey", GroupsByKey);
  add("WorldsOfSomeRanks", WorldsOfSomeRanks);
  add("PoisonedBefore", PoisonedBefore, "not a number");
  add("AbortsItsGroup", AbortsItsGroup, "cable cut");
  add("AbortsTheJob", AbortsTheJob, "cable cut");
  Register(engine, "OneCommunicatorIsForOneStreamDeathTest", ranks, [=] {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_DEATH(RunRanks(*engine, ranks, UsesTwoStreams).IgnoreError(),
                 "group 'all' .* is used on stream comm and then on "
                 "stream other");
  });
}

}  // namespace crosshatch::internal
