// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/conformance_suite_testutil.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

/// The timeout of jobs that must run into it. Long enough that ranks of a busy
/// machine arrive in time, so that the right rank is reported missing.
constexpr absl::Duration kShortTimeout = absl::Seconds(1);
/// That of a job in which a rank works on for longer.
constexpr absl::Duration kShorterTimeout = absl::Milliseconds(500);
constexpr char kTimedOut[] = "timed out after 1s";

/// Returns whether the rank causes the fault of a test.
bool IsCulprit(const ConformanceRank& rank) {
  return rank.rank() == rank.size() - 1;
}

struct Expectation {
  /// The code on all ranks but the culprit, if they have the same.
  std::optional<absl::StatusCode> code = absl::StatusCode::kFailedPrecondition;
  /// Texts in every rank's error, in addition to both sides' ranks.
  std::vector<std::string> said;
  /// Whether ranks fail that completed their part before the fault.
  bool others_fail = true;
};

absl::Status RunHealthy(ConformanceRank& rank) {
  return rank.Run({.kind = CollectiveKind::kAllReduce, .counts = {100}});
}

void ExpectFailure(const absl::Status& status, const std::string& who,
                   const std::vector<std::string>& said) {
  ASSERT_FALSE(status.ok()) << who << " did not fail";
  for (const std::string& text : said) {
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(text)) << who;
  }
}

/// Runs `body` on all ranks, checks the results of this process's ranks, and
/// runs a new job.
void RunFault(const ConformanceEngine& engine, int ranks, const Body& body,
              const Expectation& expectation, const JobOptions& options) {
  std::vector<std::optional<absl::Status>> results(ranks);
  const int culprit = ranks - 1;
  const absl::Status job = RunRanks(
      engine, ranks,
      [&](ConformanceRank& rank) {
        absl::Status result = body(rank);
        const absl::Status drained = rank.context().Synchronize();
        if (result.ok()) result = drained;
        results[rank.rank()] = result;
        return result;
      },
      options);
  std::vector<std::string> said = expectation.said;
  said.push_back(absl::StrCat("rank ", culprit));
  ExpectFailure(job, "the job", said);
  if (expectation.others_fail) {
    for (int r = 0; r < culprit; ++r) {
      if (!results[r].has_value()) continue;
      ExpectFailure(*results[r], absl::StrCat("rank ", r), said);
      if (!expectation.code.has_value()) continue;
      EXPECT_EQ(results[r]->code(), *expectation.code) << *results[r];
    }
  }
  const absl::Status healthy = RunRanks(engine, ranks, RunHealthy);
  EXPECT_TRUE(healthy.ok()) << healthy.ToString();
}

/// Returns a body with a valid collective and one that `change` modifies on the
/// culprit.
Body Mismatch(CollectiveCase c, std::function<void(CollectiveCase&)> change) {
  return [c, change](ConformanceRank& rank) -> absl::Status {
    CH_RETURN_IF_ERROR(RunHealthy(rank));
    CollectiveCase mine = c;
    if (IsCulprit(rank)) change(mine);
    CollectiveRun run = rank.Prepare(mine);
    CH_RETURN_IF_ERROR(run.Issue(rank.stream()));
    return rank.context().Synchronize();
  };
}

/// Waits, without issuing anything, until the group has failed.
absl::Status SleepUntilPoisoned(ConformanceRank& rank) {
  while (!rank.context().poisoned()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return rank.context().status();
}

class Faults {
 public:
  Faults(EnginePtr engine, int ranks)
      : engine_(std::move(engine)), ranks_(ranks) {}

  void Add(const std::string& name, const Body& body,
           const Expectation& expectation,
           const JobOptions& options = InTime()) const {
    Register(engine_, name, ranks_,
             [engine = engine_, ranks = ranks_, body, expectation, options] {
               RunFault(*engine, ranks, body, expectation, options);
             });
  }

  void AddMismatches() const {
    const auto n = static_cast<size_t>(ranks_);
    const CollectiveCase all_reduce{
        .kind = CollectiveKind::kAllReduce, .counts = {12}, .label = "grad"};
    const CollectiveCase broadcast{
        .kind = CollectiveKind::kBroadcast, .counts = {12}, .label = "weight"};
    Add("MismatchedKind",
        Mismatch(
            {.kind = CollectiveKind::kAllGather,
             .counts = std::vector<int64_t>(n, 4),
             .label = "weight"},
            [](CollectiveCase& c) { c.kind = CollectiveKind::kAllReduce; }),
        {.said = {"rank 0", "kind", "all_gather", "all_reduce"}});
    Add("MismatchedDType",
        Mismatch(all_reduce,
                 [](CollectiveCase& c) { c.dtype = DType::kFloat64; }),
        {.said = {"rank 0", "dtype", "f32", "f64"}});
    Add("MismatchedCount",
        Mismatch(all_reduce, [](CollectiveCase& c) { c.counts = {13}; }),
        {.said = {"rank 0", "12", "13"}});
    Add("MismatchedOp",
        Mismatch(all_reduce, [](CollectiveCase& c) { c.op = ReduceOp::kMax; }),
        {.said = {"rank 0", "op", "sum", "max"}});
    Add("MismatchedScale",
        Mismatch(all_reduce, [](CollectiveCase& c) { c.scale = 0.5; }),
        {.said = {"rank 0", "scale", "0.5"}});
    Add("MismatchedRoot",
        Mismatch(broadcast,
                 [n](CollectiveCase& c) { c.root = static_cast<int>(n) - 1; }),
        {.said = {"rank 0", "root"}});
    Add("MismatchedLabel",
        Mismatch(all_reduce, [](CollectiveCase& c) { c.label = "bias"; }),
        {.said = {"rank 0", "label", "'grad'", "'bias'"}});
    for (CollectiveKind kind :
         {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
          CollectiveKind::kAllToAll}) {
      Add(absl::StrCat("MismatchedPart_", Name(kind)), PartMismatch(kind),
          {.said = {"rank 0", "4", "5", "which expects"}});
    }
  }

  void AddMissing() const {
    Add("ExtraCollective",
        [](ConformanceRank& rank) -> absl::Status {
          CH_RETURN_IF_ERROR(rank.IssueBarrier("both"));
          if (IsCulprit(rank)) return rank.IssueBarrier("extra");
          return absl::OkStatus();
        },
        {.said = {"rank 0", "extra", "finished"}, .others_fail = false});
    Add("EarlyReturn",
        [](ConformanceRank& rank) -> absl::Status {
          CH_RETURN_IF_ERROR(rank.IssueBarrier("both"));
          if (IsCulprit(rank)) return absl::OkStatus();
          return rank.IssueBarrier("step 2");
        },
        {.said = {"rank 0", "step 2", "finished"}});
    Add("MissingCollective",
        [](ConformanceRank& rank) -> absl::Status {
          CH_RETURN_IF_ERROR(rank.IssueBarrier("first"));
          if (!IsCulprit(rank)) CH_RETURN_IF_ERROR(rank.IssueBarrier("second"));
          return rank.IssueBarrier("third");
        },
        {.said = {"rank 0", "second", "third"}});
  }

  void AddErrors() const {
    Add("ErrorReturn",
        [](ConformanceRank& rank) -> absl::Status {
          if (IsCulprit(rank)) return absl::InternalError("disk full");
          return rank.IssueBarrier("step 1");
        },
        {.code = absl::StatusCode::kAborted, .said = {"disk full"}});
    Add("AbortOfTheGroup",
        [](ConformanceRank& rank) -> absl::Status {
          if (IsCulprit(rank)) {
            rank.comm().Abort(absl::UnavailableError("cable cut"));
            return absl::OkStatus();
          }
          return rank.IssueBarrier("step 1");
        },
        {.code = absl::StatusCode::kUnavailable,
         .said = {"ranks 0", "cable cut"}});
    Add("AbortOfTheWorld",
        [](ConformanceRank& rank) -> absl::Status {
          if (IsCulprit(rank)) {
            rank.world().Abort(absl::UnavailableError("cable cut"));
            return absl::OkStatus();
          }
          return rank.IssueBarrier("step 1");
        },
        {.code = absl::StatusCode::kAborted, .said = {"cable cut"}});
    Add("PoisonedRankIssues",
        [](ConformanceRank& rank) -> absl::Status {
          if (IsCulprit(rank)) {
            rank.context().Poison(absl::DataLossError("not a number"));
          }
          CH_RETURN_IF_ERROR(rank.IssueBarrier("step 1"));
          return rank.context().Synchronize();
        },
        {.code = absl::StatusCode::kDataLoss, .said = {"not a number"}});
    Add("Timeout",
        [](ConformanceRank& rank) -> absl::Status {
          CH_RETURN_IF_ERROR(rank.IssueBarrier("both"));
          if (IsCulprit(rank)) return SleepUntilPoisoned(rank);
          return rank.IssueBarrier("step 2");
        },
        {.code = absl::StatusCode::kDeadlineExceeded,
         .said = {"rank 0", "step 2", kTimedOut}},
        {.timeout = kShortTimeout});
  }

  void AddTimeoutOfAGroup() const {
    Add("TimeoutOfAGroup",
        [](ConformanceRank& rank) -> absl::Status {
          World& world = rank.world();
          CH_RETURN_IF_ERROR(world.SetTimeout("axis", kShortTimeout));
          CH_ASSIGN_OR_RETURN(auto group,
                              world.Group("axis", world.AllRanks(), "axis"));
          if (!absl::IsFailedPrecondition(
                  world.SetTimeout("axis", kShortTimeout))) {
            return absl::InternalError("a timeout was set after the first use");
          }
          Stream& stream = rank.context().SideStream("axis");
          CH_RETURN_IF_ERROR(Barrier(*group, stream, "both"));
          if (IsCulprit(rank)) return SleepUntilPoisoned(rank);
          return Barrier(*group, stream, "step 2");
        },
        {.code = absl::StatusCode::kDeadlineExceeded,
         .said = {"group 'axis'", "rank 0", "step 2", kTimedOut}});
  }

  void AddCrossings() const {
    if (!engine_->exact_stalls && !engine_->any_order_of_streams) return;
    // Without cycle detection the job ends by the timeout and names the
    // timed-out group.
    const bool exact = engine_->exact_stalls;
    const auto crossed = [exact](std::vector<std::string> said) -> Expectation {
      if (exact) return {.said = std::move(said)};
      return {.code = absl::StatusCode::kDeadlineExceeded,
              .said = {"group '", kTimedOut}};
    };
    JobOptions options = InTime();
    if (!exact) options.timeout = kShortTimeout;
    for (bool inline_streams : {true, false}) {
      Add(
          inline_streams ? "CrossedOrder" : "CrossedOrderByEvents",
          [inline_streams](ConformanceRank& rank) -> absl::Status {
            RankContext& context = rank.context();
            const std::vector<int> all = rank.world().AllRanks();
            CH_ASSIGN_OR_RETURN(auto x, rank.world().Group("x", all, "a"));
            CH_ASSIGN_OR_RETURN(auto y, rank.world().Group("y", all, "b"));
            Stream& compute = context.compute_stream();
            Stream& a = inline_streams ? compute : context.SideStream("a");
            Stream& b = inline_streams ? compute : context.SideStream("b");
            if (IsCulprit(rank)) {
              CH_RETURN_IF_ERROR(Barrier(*y, b, "second"));
              a.Wait(b.Record());
              CH_RETURN_IF_ERROR(Barrier(*x, a, "first"));
            } else {
              CH_RETURN_IF_ERROR(Barrier(*x, a, "first"));
              b.Wait(a.Record());
              CH_RETURN_IF_ERROR(Barrier(*y, b, "second"));
            }
            return context.Synchronize();
          },
          crossed({"rank 0", "first", "second"}), options);
    }
    // Some ranks wait in an exchange, the culprit for its own stream.
    Add(
        "CrossedWithAnExchange",
        [](ConformanceRank& rank) -> absl::Status {
          if (IsCulprit(rank)) {
            CH_RETURN_IF_ERROR(rank.IssueBarrier("step 1"));
            CH_RETURN_IF_ERROR(rank.context().Synchronize());
          }
          return rank.comm().Exchange("", "sizes").status();
        },
        crossed({"rank 0", "step 1", "sizes"}), options);
  }

  void AddExchanges() const {
    Add("MismatchedExchange",
        [](ConformanceRank& rank) -> absl::Status {
          return rank.comm()
              .Exchange("", IsCulprit(rank) ? "shapes" : "sizes")
              .status();
        },
        {.said = {"rank 0", "shapes", "sizes"}});
    Add("ExchangeWithOneThatHasFinished",
        [](ConformanceRank& rank) -> absl::Status {
          if (IsCulprit(rank)) return absl::OkStatus();
          return rank.comm().Exchange("", "sizes").status();
        },
        {.said = {"rank 0", "sizes", "finished"}});
  }

  /// Two groups share one rank: a failure in one ends the other.
  void AddSpread() const {
    if (ranks_ < 3) return;
    Add("FailureSpreadsToOtherGroups",
        [](ConformanceRank& rank) -> absl::Status {
          Stream& stream = rank.context().SideStream("s");
          Stream& other = rank.context().SideStream("t");
          if (rank.rank() <= 1) {
            CH_ASSIGN_OR_RETURN(auto low,
                                rank.world().Group("low", {0, 1}, "s"));
            if (rank.rank() == 0) return Barrier(*low, stream, "waiting");
          }
          const int last = rank.size() - 1;
          if (rank.rank() != 1 && !IsCulprit(rank)) {
            return SleepUntilPoisoned(rank);
          }
          CH_ASSIGN_OR_RETURN(auto high,
                              rank.world().Group("high", {1, last}, "t"));
          return Barrier(*high, other, IsCulprit(rank) ? "this" : "that");
        },
        // Rank 1 disagrees with the culprit; the others receive its report.
        {.code = std::nullopt, .said = {"rank 1", "this", "that"}});
  }

 private:
  /// Lists that are valid on each rank but do not match between ranks.
  static Body PartMismatch(CollectiveKind kind) {
    return [kind](ConformanceRank& rank) -> absl::Status {
      RankContext& context = rank.context();
      const Block block = context.allocator().Allocate(
          4096, MemoryClass::kCommunication, context.compute_stream());
      const SegmentList four = {{.data = block.data(), .run_elems = 4}};
      const SegmentList five = {{.data = block.data(), .run_elems = 5}};
      const auto n = static_cast<size_t>(rank.size());
      Collective c{.kind = kind, .label = "part"};
      c.send.assign(kind == CollectiveKind::kAllGather ? 1 : n, four);
      c.recv.assign(kind == CollectiveKind::kReduceScatter ? 1 : n, four);
      if (IsCulprit(rank)) {
        (kind == CollectiveKind::kAllGather ? c.recv : c.send)[0] = five;
      }
      CH_RETURN_IF_ERROR(rank.comm().Issue(std::move(c), rank.stream()));
      return context.Synchronize();
    };
  }

  const EnginePtr engine_;
  const int ranks_;
};

/// Ranks that others do not need may end first, for longer than the timeout.
absl::Status WorkOnWithoutRankZero(ConformanceRank& rank) {
  if (rank.rank() == 0) return absl::OkStatus();
  CH_ASSIGN_OR_RETURN(auto others, rank.world().Group("others", {1, 2}, "c"));
  const auto began = std::chrono::steady_clock::now();
  bool goes_on = true;
  while (goes_on) {
    const bool mine = absl::FromChrono(std::chrono::steady_clock::now() -
                                       began) < 3 * kShorterTimeout;
    CH_ASSIGN_OR_RETURN(const auto all,
                        others->Exchange(mine ? "on" : "", "step"));
    goes_on = !all[0].empty();
  }
  return absl::OkStatus();
}

absl::Status Barriers(ConformanceRank& rank) {
  for (int i = 0; i < 100; ++i) {
    CH_RETURN_IF_ERROR(rank.IssueBarrier("barrier"));
  }
  return rank.context().Synchronize();
}

absl::Status Exchanges(ConformanceRank& rank) {
  for (int i = 0; i < 50; ++i) {
    const auto blob_of = [&](int r) { return std::string(r * i, 'a' + r); };
    CH_ASSIGN_OR_RETURN(
        const std::vector<std::string> blobs,
        rank.comm().Exchange(blob_of(rank.rank()), absl::StrCat("e", i)));
    if (blobs.size() != static_cast<size_t>(rank.size())) {
      return absl::InternalError(absl::StrCat(blobs.size(), " blobs"));
    }
    for (int r = 0; r < rank.size(); ++r) {
      if (blobs[r] != blob_of(r)) return absl::InternalError(blobs[r]);
    }
  }
  return absl::OkStatus();
}

}  // namespace

void RegisterFailures(const EnginePtr& engine, int ranks) {
  RegisterJob(engine, "Barriers", ranks, Barriers);
  RegisterJob(engine, "Exchanges", ranks, Exchanges);
  if (ranks == 3) {
    RegisterJob(engine, "RanksThatWorkOnMayOutliveOthers", ranks,
                WorkOnWithoutRankZero, {.timeout = kShorterTimeout});
  }
  if (ranks == 1) return;
  const Faults faults(engine, ranks);
  faults.AddMismatches();
  faults.AddMissing();
  faults.AddErrors();
  faults.AddTimeoutOfAGroup();
  faults.AddCrossings();
  faults.AddExchanges();
  faults.AddSpread();
}

}  // namespace crosshatch::internal
