// SPDX-License-Identifier: Apache-2.0

/// \file
/// Faults that VerifyStep must find, each with its counterexample, in the log
/// of a correct program: as if streams, leases or one rank behaved differently.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/tests/verified_step_testutil.h"
#include "crosshatch/verify/verify_step.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::verify {
namespace {

using EventKind = LoggedEvent::Kind;
using FindingKind = Finding::Kind;
using testing::HasSubstr;

/// Changes the log of a rank.
class Editor {
 public:
  explicit Editor(RankLog& log) : log_(log) {}

  RankLog& log() { return log_; }
  LoggedEvent& At(int64_t i) { return log_.events[static_cast<size_t>(i)]; }
  LoggedCollective& CollectiveOf(int64_t i) {
    return log_.collectives[static_cast<size_t>(At(i).id)];
  }
  int StreamOf(const std::string& name) const {
    const auto found =
        std::find(log_.streams.begin(), log_.streams.end(), name);
    EXPECT_NE(found, log_.streams.end()) << name;
    return static_cast<int>(found - log_.streams.begin());
  }

  /// Returns the events that `wanted` selects.
  std::vector<int64_t> All(
      const std::function<bool(const LoggedEvent&)>& wanted) const {
    std::vector<int64_t> found;
    for (size_t i = 0; i < log_.events.size(); ++i) {
      if (wanted(log_.events[i])) found.push_back(static_cast<int64_t>(i));
    }
    return found;
  }
  std::vector<int64_t> Collectives(CollectiveKind kind) const {
    return All([&](const LoggedEvent& e) {
      return e.kind == EventKind::kCollective &&
             log_.collectives[static_cast<size_t>(e.id)].kind == kind;
    });
  }
  /// Returns the waits of one stream for points of another.
  std::vector<int64_t> Waits(const std::string& waiting,
                             const std::string& awaited) const {
    std::vector<int> stream_of(static_cast<size_t>(log_.points), -1);
    for (const LoggedEvent& e : log_.events) {
      if (e.kind == EventKind::kRecord) {
        stream_of[static_cast<size_t>(e.id)] = e.stream;
      }
    }
    return All([&](const LoggedEvent& e) {
      return e.kind == EventKind::kWait && e.stream == StreamOf(waiting) &&
             stream_of[static_cast<size_t>(e.id)] == StreamOf(awaited);
    });
  }

  void Erase(int64_t i) { log_.events.erase(log_.events.begin() + i); }
  /// Moves event `from` to before event `to`.
  void Move(int64_t from, int64_t to) {
    const LoggedEvent event = At(from);
    Erase(from);
    log_.events.insert(log_.events.begin() + (to > from ? to - 1 : to), event);
  }
  void Swap(int64_t a, int64_t b) { std::swap(At(a), At(b)); }

 private:
  RankLog& log_;
};

/// A fault in the logs of a job.
struct LogFault {
  std::string name;
  FindingKind kind;
  /// Text of the counterexample.
  std::string text;
  std::function<void(JobLog&)> plant;
};

void OnAllRanks(JobLog& job, const std::function<void(Editor)>& edit) {
  for (RankLog& log : job.logs) edit(Editor(log));
}

/// Changes the second all-gather of rank 3.
LogFault InCollective(const std::string& name, const std::string& text,
                      const std::function<void(LoggedCollective&)>& change) {
  return {name, FindingKind::kMismatch, text, [change](JobLog& job) {
            Editor rank(job.logs[3]);
            change(rank.CollectiveOf(
                rank.Collectives(CollectiveKind::kAllGather)[1]));
          }};
}

/// Returns the first wait that orders accesses.
int64_t NeededWait(Editor rank, const std::string& waiting,
                   const std::string& awaited) {
  for (const int64_t wait : rank.Waits(waiting, awaited)) {
    RankLog without = rank.log();
    Editor(without).Erase(wait);
    if (!CheckOrder(without).findings.empty()) return wait;
  }
  ADD_FAILURE() << "no wait of " << waiting << " for " << awaited
                << " is needed";
  return 0;
}

LogFault DroppedWait(const std::string& waiting, const std::string& awaited,
                     const std::string& text) {
  return {absl::StrCat("no wait of ", waiting, " for ", awaited),
          FindingKind::kRace, text, [=](JobLog& job) {
            Editor rank(job.logs[1]);
            rank.Erase(NeededWait(rank, waiting, awaited));
          }};
}

std::vector<LogFault> LogFaults() {
  const auto first = [](const std::vector<int64_t>& events) {
    EXPECT_FALSE(events.empty());
    return events.empty() ? 0 : events[0];
  };
  return {
      DroppedWait("compute", "fsdp_all_gather", "all_gather"),
      DroppedWait("fsdp_all_gather", "compute", "all_gather"),
      DroppedWait("fsdp_reduce_scatter", "compute", "reduce_scatter"),
      DroppedWait("compute", "fsdp_all_reduce", "adamw"),
      DroppedWait("fsdp_all_reduce", "fsdp_reduce_scatter", "all_reduce"),
      {"a point that is never recorded", FindingKind::kCircularWait,
       "nothing ends this wait",
       [=](JobLog& job) {
         Editor rank(job.logs[2]);
         const int64_t wait = first(rank.Waits("compute", "fsdp_all_gather"));
         const int64_t point = rank.At(wait).id;
         rank.Erase(first(rank.All([&](const LoggedEvent& e) {
           return e.kind == EventKind::kRecord && e.id == point;
         })));
       }},
      {"a point recorded before the gather", FindingKind::kRace, "all_gather",
       [=](JobLog& job) {
         Editor rank(job.logs[2]);
         const int64_t wait = NeededWait(rank, "compute", "fsdp_all_gather");
         const int64_t point = rank.At(wait).id;
         rank.Move(first(rank.All([&](const LoggedEvent& e) {
                     return e.kind == EventKind::kRecord && e.id == point;
                   })),
                   first(rank.Collectives(CollectiveKind::kAllGather)));
       }},
      {"two collectives of one rank swapped", FindingKind::kMismatch,
       "the label differs",
       [](JobLog& job) {
         Editor rank(job.logs[1]);
         const auto gathers = rank.Collectives(CollectiveKind::kAllGather);
         rank.Swap(gathers[1], gathers[2]);
       }},
      {"a collective that one rank omits", FindingKind::kMismatch,
       "issues only",
       [](JobLog& job) {
         Editor rank(job.logs[1]);
         rank.Erase(rank.Collectives(CollectiveKind::kReduceScatter).back());
       }},
      {"a collective that one rank repeats", FindingKind::kMismatch, "label",
       [](JobLog& job) {
         Editor rank(job.logs[0]);
         const int64_t i =
             rank.Collectives(CollectiveKind::kReduceScatter).front();
         job.logs[0].events.insert(job.logs[0].events.begin() + i, rank.At(i));
       }},
      InCollective("another count", "elements",
                   [](LoggedCollective& c) { ++c.received[0]; }),
      InCollective("another dtype", "the dtype differs",
                   [](LoggedCollective& c) { c.dtype = kFloat64; }),
      InCollective(
          "another kind", "the kind differs",
          [](LoggedCollective& c) { c.kind = CollectiveKind::kAllToAll; }),
      InCollective("another root", "the root differs",
                   [](LoggedCollective& c) { c.root = 1; }),
      InCollective("another label", "the label differs",
                   [](LoggedCollective& c) { c.label = "other"; }),
      {"another reduction on one rank", FindingKind::kMismatch,
       "the reduction differs",
       [=](JobLog& job) {
         Editor rank(job.logs[3]);
         rank.CollectiveOf(
                 first(rank.Collectives(CollectiveKind::kReduceScatter)))
             .op = ReduceOp::kMax;
       }},
      {"another scale on one rank", FindingKind::kMismatch, "the scale differs",
       [=](JobLog& job) {
         Editor rank(job.logs[3]);
         rank.CollectiveOf(
                 first(rank.Collectives(CollectiveKind::kReduceScatter)))
             .scale = 1;
       }},
      {"a divisor forgotten on all ranks", FindingKind::kGradient,
       "but the divisor is 4",
       [=](JobLog& job) {
         OnAllRanks(job, [=](Editor rank) {
           rank.CollectiveOf(
                   first(rank.Collectives(CollectiveKind::kReduceScatter)))
               .scale = 1;
         });
       }},
      {"a sum over replicas that is omitted", FindingKind::kGradient,
       "it should be the sum over ranks 0, 1, 2, 3",
       [=](JobLog& job) {
         OnAllRanks(job, [=](Editor rank) {
           rank.Erase(first(rank.Collectives(CollectiveKind::kAllReduce)));
         });
       }},
      {"a sum over replicas that is done twice", FindingKind::kGradient,
       "is in the sum 2 times",
       [=](JobLog& job) {
         OnAllRanks(job, [=](Editor rank) {
           const int64_t i =
               first(rank.Collectives(CollectiveKind::kAllReduce));
           rank.log().events.insert(rank.log().events.begin() + i, rank.At(i));
         });
       }},
      {"a gather that is omitted", FindingKind::kStale,
       "to which nothing was gathered",
       [=](JobLog& job) {
         OnAllRanks(job, [=](Editor rank) {
           rank.Erase(first(rank.Collectives(CollectiveKind::kAllGather)));
         });
       }},
      {"a buffer that is not released", FindingKind::kLeak, "are not released",
       [=](JobLog& job) {
         Editor rank(job.logs[1]);
         const int64_t i = first(rank.All([](const LoggedEvent& e) {
           return e.kind == EventKind::kRelease;
         }));
         rank.log().leases[static_cast<size_t>(rank.At(i).id)].released = false;
         rank.Erase(i);
       }},
      {"a buffer released before its last use", FindingKind::kLifetime,
       "which were released before",
       [=](JobLog& job) {
         Editor rank(job.logs[1]);
         const int64_t gather =
             first(rank.Collectives(CollectiveKind::kAllGather));
         const int64_t lease =
             rank.log().LeaseAt(rank.log()
                                    .accesses[rank.At(gather).first_access +
                                              rank.At(gather).num_accesses - 1]
                                    .begin);
         rank.Move(first(rank.All([&](const LoggedEvent& e) {
                     return e.kind == EventKind::kRelease && e.id == lease;
                   })),
                   gather + 1);
       }},
      {"a use on another stream that is not declared", FindingKind::kLifetime,
       "UsedOn(fsdp_reduce_scatter)",
       [=](JobLog& job) {
         Editor rank(job.logs[1]);
         rank.Erase(first(rank.All([&](const LoggedEvent& e) {
           return e.kind == EventKind::kUse &&
                  e.stream == rank.StreamOf("fsdp_reduce_scatter");
         })));
       }},
      {"a lease on another stream", FindingKind::kLifetime,
       "may run before the work of that stream",
       [=](JobLog& job) {
         Editor rank(job.logs[1]);
         for (LoggedEvent& e : rank.log().events) {
           if (e.kind != EventKind::kLease) continue;
           LoggedLease& lease = rank.log().leases[static_cast<size_t>(e.id)];
           if (lease.memory_class != MemoryClass::kGradient) continue;
           lease.stream = rank.StreamOf("fsdp_reduce_scatter");
           e.stream = lease.stream;
         }
       }},
      {"an exchange that one rank omits", FindingKind::kMismatch, "exchange",
       [=](JobLog& job) {
         Editor rank(job.logs[2]);
         rank.Erase(first(rank.All([](const LoggedEvent& e) {
           return e.kind == EventKind::kExchange;
         })));
       }},
  };
}

TEST(VerifiedStepFaultsTest, ThePlainTrainingIsVerified) {
  const VerifyReport report = Verify({});
  EXPECT_TRUE(report.ok()) << report.ToString();
  EXPECT_EQ(report.ranks_run, 4);
  EXPECT_GT(report.pairs, 0);
  EXPECT_THAT(report.ToString(), HasSubstr("verified: 4 ranks"));
}

const GradientRule kHybridRule = {.batch_axes = {0, 1}, .divisor = 4};

TEST(VerifiedStepFaultsTest, FindsFaultsInLogs) {
  const VerifyReport correct = Verify({});
  for (const LogFault& fault : LogFaults()) {
    SCOPED_TRACE(fault.name);
    JobLog job = correct.job;
    fault.plant(job);
    const VerifyReport report = CheckJob(std::move(job), kHybridRule);
    ExpectFound(fault.name, report, fault.kind, fault.text);
    EXPECT_FALSE(report.findings[0].missing.empty());
    EXPECT_THAT(report.ToTrace(), HasSubstr("traceEvents"));
  }
}

TEST(VerifiedStepFaultsTest, FindsParametersThatAreKeptGatheredAndOld) {
  VerifyReport correct = Verify({.keep_unsharded = true});
  ASSERT_TRUE(correct.ok()) << correct.ToString();
  OnAllRanks(correct.job, [](Editor rank) {
    const std::vector<int64_t> gathers =
        rank.Collectives(CollectiveKind::kAllGather);
    const std::string label = rank.CollectiveOf(gathers[0]).label;
    for (size_t i = gathers.size() - 1; i > 0; --i) {
      if (rank.CollectiveOf(gathers[i]).label == label) rank.Erase(gathers[i]);
    }
  });
  const VerifyReport report = CheckJob(std::move(correct.job), kHybridRule);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.findings[0].kind, FindingKind::kStale) << report.ToString();
  EXPECT_THAT(report.findings[0].message, HasSubstr("were updated"));
}

}  // namespace
}  // namespace crosshatch::verify
