// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/conformance_faults.h"

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/conformance_case.h"
#include "crosshatch/comm/conformance_rank.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

/// The timeout of jobs that must run into it. Long enough that ranks of a busy
/// machine arrive in time, so that the right rank is reported missing.
constexpr absl::Duration kShortTimeout = absl::Seconds(1);
constexpr char kTimedOut[] = "timed out after 1s";

/// One rank's part of a fault test. The last rank is the culprit.
using Body = std::function<absl::Status(const ConformanceEngine& engine,
                                        World& world, bool is_culprit)>;

struct Expectation {
  /// The code on all ranks but the culprit, if they have the same.
  std::optional<absl::StatusCode> code = absl::StatusCode::kFailedPrecondition;
  /// Texts in every rank's error, in addition to both sides' ranks.
  std::vector<std::string> said;
  /// Whether ranks fail that completed their part before the fault.
  bool others_fail = true;
};

absl::Status HealthyRank(const ConformanceEngine& engine, World& world) {
  CH_ASSIGN_OR_RETURN(ConformanceRank rank,
                      ConformanceRank::Create(engine, world));
  return rank.Run({.kind = CollectiveKind::kAllReduce, .counts = {100}});
}

void ExpectSays(const absl::Status& status, const std::string& who,
                const std::vector<std::string>& said) {
  ASSERT_FALSE(status.ok()) << who << " did not fail";
  for (const std::string& text : said) {
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(text)) << who;
  }
}

/// Runs `body` on all ranks, checks the results of this process's ranks, and
/// runs a new job.
void RunFault(const ConformanceEngine& engine, int ranks, const Body& body,
              const Expectation& expectation,
              const ConformanceRunOptions& options = {}) {
  std::vector<std::optional<absl::Status>> results(ranks);
  const int culprit = ranks - 1;
  const absl::Status job = engine.run(
      ranks,
      [&](World& world) {
        absl::Status result = body(engine, world, world.rank() == culprit);
        const absl::Status drained = world.context().Synchronize();
        if (result.ok()) result = drained;
        results[world.rank()] = result;
        return result;
      },
      options);
  std::vector<std::string> said = expectation.said;
  said.push_back(absl::StrCat("rank ", culprit));
  ExpectSays(job, "the job", said);
  if (expectation.others_fail) {
    for (int r = 0; r < culprit; ++r) {
      if (!results[r].has_value()) continue;
      ExpectSays(*results[r], absl::StrCat("rank ", r), said);
      if (!expectation.code.has_value()) continue;
      EXPECT_EQ(results[r]->code(), *expectation.code) << *results[r];
    }
  }
  const absl::Status healthy = engine.run(
      ranks, [&](World& world) { return HealthyRank(engine, world); }, {});
  EXPECT_TRUE(healthy.ok()) << healthy.ToString();
}

/// Returns a body with a valid collective and one that `change` modifies on the
/// culprit.
Body Mismatch(CollectiveCase c, std::function<void(CollectiveCase&)> change) {
  return [c, change](const ConformanceEngine& engine, World& world,
                     bool is_culprit) -> absl::Status {
    CH_ASSIGN_OR_RETURN(ConformanceRank rank,
                        ConformanceRank::Create(engine, world));
    CH_RETURN_IF_ERROR(HealthyRank(engine, world));
    CollectiveCase mine = c;
    if (is_culprit) change(mine);
    CollectiveRun run(engine, world, rank.comm(), mine);
    CH_RETURN_IF_ERROR(run.Issue(rank.stream()));
    return world.context().Synchronize();
  };
}

absl::Status IssueLabelled(ConformanceRank& rank, const std::string& label) {
  return Barrier(rank.comm(), rank.stream(), label);
}

/// Waits, without issuing anything, until the group has failed.
absl::Status SleepUntilPoisoned(World& world) {
  while (!world.context().poisoned()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return world.context().status();
}

class Faults {
 public:
  Faults(std::shared_ptr<const ConformanceEngine> engine, int ranks)
      : engine_(std::move(engine)), ranks_(ranks) {}

  void Add(const std::string& name, Body body, Expectation expectation,
           ConformanceRunOptions options = {}) {
    tests_.push_back(
        {name, [engine = engine_, ranks = ranks_, body = std::move(body),
                expectation = std::move(expectation), options] {
           RunFault(*engine, ranks, body, expectation, options);
         }});
  }

  void AddMismatches() {
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

  void AddMissing() {
    if (engine_->finds_finished) {
      Add("ExtraCollective",
          [](const ConformanceEngine& engine, World& world,
             bool is_culprit) -> absl::Status {
            CH_ASSIGN_OR_RETURN(ConformanceRank rank,
                                ConformanceRank::Create(engine, world));
            CH_RETURN_IF_ERROR(IssueLabelled(rank, "both"));
            if (is_culprit) return IssueLabelled(rank, "extra");
            return absl::OkStatus();
          },
          {.said = {"rank 0", "extra", "finished"}, .others_fail = false});
      Add("EarlyReturn",
          [](const ConformanceEngine& engine, World& world,
             bool is_culprit) -> absl::Status {
            CH_ASSIGN_OR_RETURN(ConformanceRank rank,
                                ConformanceRank::Create(engine, world));
            CH_RETURN_IF_ERROR(IssueLabelled(rank, "both"));
            if (is_culprit) return absl::OkStatus();
            return IssueLabelled(rank, "step 2");
          },
          {.said = {"rank 0", "step 2", "finished"}});
    }
    Add("MissingCollective",
        [](const ConformanceEngine& engine, World& world,
           bool is_culprit) -> absl::Status {
          CH_ASSIGN_OR_RETURN(ConformanceRank rank,
                              ConformanceRank::Create(engine, world));
          CH_RETURN_IF_ERROR(IssueLabelled(rank, "first"));
          if (!is_culprit) CH_RETURN_IF_ERROR(IssueLabelled(rank, "second"));
          return IssueLabelled(rank, "third");
        },
        {.said = {"rank 0", "second", "third"}});
  }

  void AddErrors() {
    Add("ErrorReturn",
        [](const ConformanceEngine& engine, World& world,
           bool is_culprit) -> absl::Status {
          CH_ASSIGN_OR_RETURN(ConformanceRank rank,
                              ConformanceRank::Create(engine, world));
          if (is_culprit) return absl::InternalError("disk full");
          return IssueLabelled(rank, "step 1");
        },
        {.code = absl::StatusCode::kAborted, .said = {"disk full"}});
    Add("AbortOfTheGroup",
        [](const ConformanceEngine& engine, World& world,
           bool is_culprit) -> absl::Status {
          CH_ASSIGN_OR_RETURN(ConformanceRank rank,
                              ConformanceRank::Create(engine, world));
          if (is_culprit) {
            rank.comm().Abort(absl::UnavailableError("cable cut"));
            return absl::OkStatus();
          }
          return IssueLabelled(rank, "step 1");
        },
        {.code = absl::StatusCode::kUnavailable,
         .said = {"ranks 0", "cable cut"}});
    Add("AbortOfTheWorld",
        [](const ConformanceEngine& engine, World& world,
           bool is_culprit) -> absl::Status {
          CH_ASSIGN_OR_RETURN(ConformanceRank rank,
                              ConformanceRank::Create(engine, world));
          if (is_culprit) {
            world.Abort(absl::UnavailableError("cable cut"));
            return absl::OkStatus();
          }
          return IssueLabelled(rank, "step 1");
        },
        {.code = absl::StatusCode::kAborted, .said = {"cable cut"}});
    Add("PoisonedRankIssues",
        [](const ConformanceEngine& engine, World& world,
           bool is_culprit) -> absl::Status {
          CH_ASSIGN_OR_RETURN(ConformanceRank rank,
                              ConformanceRank::Create(engine, world));
          if (is_culprit) {
            world.context().Poison(absl::DataLossError("not a number"));
          }
          CH_RETURN_IF_ERROR(IssueLabelled(rank, "step 1"));
          return world.context().Synchronize();
        },
        {.code = absl::StatusCode::kDataLoss, .said = {"not a number"}});
    Add("Timeout",
        [](const ConformanceEngine& engine, World& world,
           bool is_culprit) -> absl::Status {
          CH_ASSIGN_OR_RETURN(ConformanceRank rank,
                              ConformanceRank::Create(engine, world));
          CH_RETURN_IF_ERROR(IssueLabelled(rank, "both"));
          if (is_culprit) return SleepUntilPoisoned(world);
          return IssueLabelled(rank, "step 2");
        },
        {.code = absl::StatusCode::kDeadlineExceeded,
         .said = {"rank 0", "step 2", kTimedOut}},
        {.timeout = kShortTimeout});
  }

  void AddCrossings() {
    if (!engine_->exact_stalls && !engine_->any_order_of_streams) return;
    // Without cycle detection the job ends by the timeout and names the
    // timed-out group.
    const bool exact = engine_->exact_stalls;
    const auto crossed = [exact](std::vector<std::string> said) -> Expectation {
      if (exact) return {.said = std::move(said)};
      return {.code = absl::StatusCode::kDeadlineExceeded,
              .said = {"group '", kTimedOut}};
    };
    ConformanceRunOptions options;
    if (!exact) options.timeout = kShortTimeout;
    for (bool inline_streams : {true, false}) {
      Add(
          inline_streams ? "CrossedOrder" : "CrossedOrderByEvents",
          [inline_streams](const ConformanceEngine&, World& world,
                           bool is_culprit) -> absl::Status {
            RankContext& context = world.context();
            std::vector<int> all;
            for (int r = 0; r < world.size(); ++r) all.push_back(r);
            CH_ASSIGN_OR_RETURN(auto x, world.Group("x", all, "a"));
            CH_ASSIGN_OR_RETURN(auto y, world.Group("y", all, "b"));
            Stream& compute = context.compute_stream();
            Stream& a = inline_streams ? compute : context.SideStream("a");
            Stream& b = inline_streams ? compute : context.SideStream("b");
            if (is_culprit) {
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
        [](const ConformanceEngine& engine, World& world,
           bool is_culprit) -> absl::Status {
          CH_ASSIGN_OR_RETURN(ConformanceRank rank,
                              ConformanceRank::Create(engine, world));
          if (is_culprit) {
            CH_RETURN_IF_ERROR(IssueLabelled(rank, "step 1"));
            CH_RETURN_IF_ERROR(world.context().Synchronize());
          }
          return rank.comm().Exchange("", "sizes").status();
        },
        crossed({"rank 0", "step 1", "sizes"}), options);
  }

  void AddExchanges() {
    Add("MismatchedExchange",
        [](const ConformanceEngine& engine, World& world,
           bool is_culprit) -> absl::Status {
          CH_ASSIGN_OR_RETURN(ConformanceRank rank,
                              ConformanceRank::Create(engine, world));
          return rank.comm()
              .Exchange("", is_culprit ? "shapes" : "sizes")
              .status();
        },
        {.said = {"rank 0", "shapes", "sizes"}});
    if (!engine_->finds_finished) return;
    Add("ExchangeWithOneThatHasFinished",
        [](const ConformanceEngine& engine, World& world,
           bool is_culprit) -> absl::Status {
          CH_ASSIGN_OR_RETURN(ConformanceRank rank,
                              ConformanceRank::Create(engine, world));
          if (is_culprit) return absl::OkStatus();
          return rank.comm().Exchange("", "sizes").status();
        },
        {.said = {"rank 0", "sizes", "finished"}});
  }

  /// Two groups share one rank: a failure in one ends the other.
  void AddSpread() {
    if (ranks_ < 3) return;
    Add("FailureSpreadsToOtherGroups",
        [](const ConformanceEngine&, World& world,
           bool is_culprit) -> absl::Status {
          Stream& stream = world.context().SideStream("s");
          Stream& other = world.context().SideStream("t");
          if (world.rank() <= 1) {
            CH_ASSIGN_OR_RETURN(auto low, world.Group("low", {0, 1}, "s"));
            if (world.rank() == 0) return Barrier(*low, stream, "waiting");
          }
          const int last = world.size() - 1;
          if (world.rank() != 1 && !is_culprit) {
            return SleepUntilPoisoned(world);
          }
          CH_ASSIGN_OR_RETURN(auto high, world.Group("high", {1, last}, "t"));
          return Barrier(*high, other, is_culprit ? "this" : "that");
        },
        // Rank 1 disagrees with the culprit; the others receive its report.
        {.code = std::nullopt, .said = {"rank 1", "this", "that"}});
  }

  std::vector<FaultTest> Take() { return std::move(tests_); }

 private:
  /// Lists that are valid on each rank but do not match between ranks.
  static Body PartMismatch(CollectiveKind kind) {
    return [kind](const ConformanceEngine& engine, World& world,
                  bool is_culprit) -> absl::Status {
      CH_ASSIGN_OR_RETURN(ConformanceRank rank,
                          ConformanceRank::Create(engine, world));
      RankContext& context = world.context();
      const Block block = context.allocator().Allocate(
          4096, MemoryClass::kCommunication, context.compute_stream());
      const SegmentList four = {{.data = block.data(), .run_elems = 4}};
      const SegmentList five = {{.data = block.data(), .run_elems = 5}};
      const auto n = static_cast<size_t>(world.size());
      Collective c{.kind = kind, .label = "part"};
      c.send.assign(kind == CollectiveKind::kAllGather ? 1 : n, four);
      c.recv.assign(kind == CollectiveKind::kReduceScatter ? 1 : n, four);
      if (is_culprit) {
        (kind == CollectiveKind::kAllGather ? c.recv : c.send)[0] = five;
      }
      CH_RETURN_IF_ERROR(rank.comm().Issue(std::move(c), rank.stream()));
      return context.Synchronize();
    };
  }

  const std::shared_ptr<const ConformanceEngine> engine_;
  const int ranks_;
  std::vector<FaultTest> tests_;
};

}  // namespace

std::vector<FaultTest> FaultTests(
    std::shared_ptr<const ConformanceEngine> engine, int ranks) {
  if (ranks == 1) return {};
  Faults faults(std::move(engine), ranks);
  faults.AddMismatches();
  faults.AddMissing();
  faults.AddErrors();
  faults.AddCrossings();
  faults.AddExchanges();
  faults.AddSpread();
  return faults.Take();
}

}  // namespace crosshatch::internal
