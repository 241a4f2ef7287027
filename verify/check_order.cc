// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/verify/interval_map.h"
#include "crosshatch/verify/job_log.h"

namespace crosshatch::verify {
namespace {

using Kind = LoggedEvent::Kind;
constexpr size_t kMostFindings = 20;

/// A lower bound on the finished work of each stream at a point.
using Clock = absl::InlinedVector<int64_t, 8>;

/// Whether `clock` is raised.
bool Join(Clock& clock, const Clock& other) {
  bool raised = false;
  for (size_t s = 0; s < clock.size(); ++s) {
    raised = raised || other[s] > clock[s];
    clock[s] = std::max(clock[s], other[s]);
  }
  return raised;
}

/// Work `number` of a stream, from 1.
struct Use {
  int stream = -1;
  int64_t number = 0;
  int64_t event = -1;
};

/// The latest accesses to some bytes: the last write, and the last read of each
/// stream after it.
struct Cell {
  Use write;
  absl::InlinedVector<Use, 2> reads;
};

/// Where the values of gathered parameters come from.
struct Source {
  int64_t shards = -1;   ///< The lease of the sharded parameters.
  int64_t version = -1;  ///< Writes to it by then.
  int64_t event = -1;
};

struct Memory {
  IntervalMap<Cell> cells;
  Use lease;              ///< The home stream's last work before the lease.
  int64_t released = -1;  ///< The event.
  std::vector<int64_t> declared;  ///< Points of uses on other streams.
  int64_t version = 0;
  Source source;
};

class OrderChecker {
 public:
  explicit OrderChecker(const RankLog& log)
      : log_(log),
        host_(log.streams.size()),
        clocks_(log.streams.size(), Clock(log.streams.size())),
        points_(static_cast<size_t>(log.points), Clock(log.streams.size())),
        memory_(log.leases.size()) {}

  OrderResult Run() {
    for (size_t i = 0; i < log_.events.size(); ++i) {
      Take(static_cast<int64_t>(i), log_.events[i]);
    }
    for (size_t i = 0; i < log_.leases.size(); ++i) {
      if (log_.leases[i].released) continue;
      const auto lease = static_cast<int64_t>(i);
      Report({.kind = Finding::Kind::kLeak,
              .first = At(EventOfLease(lease)),
              .message = absl::StrCat(log_.DescribeLease(lease),
                                      " are not released when the program "
                                      "returns"),
              .missing = "a release"});
    }
    return std::move(result_);
  }

 private:
  Clock& clock(int stream) { return clocks_[static_cast<size_t>(stream)]; }
  EventOfRank At(int64_t event) const { return {log_.rank, event}; }

  int64_t EventOfLease(int64_t lease) const {
    for (size_t i = 0; i < log_.events.size(); ++i) {
      const LoggedEvent& e = log_.events[i];
      if (e.kind == Kind::kLease && e.id == lease)
        return static_cast<int64_t>(i);
    }
    return -1;
  }

  /// Reports each pair of texts once.
  void Report(Finding finding) {
    const auto text = [&](const EventOfRank& at) {
      return at.event < 0
                 ? std::pair(-1, -1)
                 : std::pair(TextOf(at.event),
                             log_.events[static_cast<size_t>(at.event)].stream);
    };
    if (!reported_
             .insert({finding.kind, text(finding.first), text(finding.second)})
             .second) {
      return;
    }
    if (result_.findings.size() < kMostFindings) {
      result_.findings.push_back(std::move(finding));
    }
  }
  int TextOf(int64_t event) const {
    const LoggedEvent& e = log_.events[static_cast<size_t>(event)];
    if (e.kind == Kind::kCollective) {
      return -2 -
             static_cast<int>(log_.collectives[static_cast<size_t>(e.id)].kind);
    }
    return e.text;
  }

  void Take(int64_t index, const LoggedEvent& e) {
    switch (e.kind) {
      case Kind::kWork:
      case Kind::kCollective:
        Join(clock(e.stream), host_);
        ++clock(e.stream)[static_cast<size_t>(e.stream)];
        Work(index, e);
        break;
      case Kind::kRecord:
        points_[static_cast<size_t>(e.id)] = clock(e.stream);
        break;
      case Kind::kWait: {
        Join(clock(e.stream), host_);
        // Without work there is nothing to wait for.
        if (!Join(clock(e.stream), points_[static_cast<size_t>(e.id)])) {
          result_.superfluous_waits.push_back(index);
        }
        break;
      }
      case Kind::kHostWait:
        Join(host_, points_[static_cast<size_t>(e.id)]);
        break;
      case Kind::kExchange:
        break;
      case Kind::kLease: {
        Memory& memory = memory_[static_cast<size_t>(e.id)];
        Clock now = clock(e.stream);
        Join(now, host_);
        memory.lease = {e.stream, now[static_cast<size_t>(e.stream)], index};
        break;
      }
      case Kind::kUse:
        memory_[static_cast<size_t>(e.id)].declared.push_back(e.point);
        break;
      case Kind::kRelease:
        Release(index, e);
        break;
    }
  }

  bool IsBefore(const Use& use, const Clock& clock) const {
    return use.number <= clock[static_cast<size_t>(use.stream)];
  }

  void Work(int64_t index, const LoggedEvent& e) {
    const Use use = {e.stream, clock(e.stream)[static_cast<size_t>(e.stream)],
                     index};
    for (uint32_t i = 0; i < e.num_accesses; ++i) {
      const LoggedAccess& access = log_.accesses[e.first_access + i];
      const int64_t lease = log_.LeaseAt(access.begin);
      if (lease >= 0) Access(use, access, lease);
    }
    FollowGathers(index, e);
  }

  void Access(const Use& use, const LoggedAccess& access, int64_t lease) {
    Memory& memory = memory_[static_cast<size_t>(lease)];
    if (memory.released >= 0) {
      Report({.kind = Finding::Kind::kLifetime,
              .first = At(memory.released),
              .second = At(use.event),
              .message = absl::StrCat(log_.Describe(use.event), " ",
                                      access.writes ? "writes to " : "reads ",
                                      log_.DescribeLease(lease),
                                      ", which were released before"),
              .missing = "the release comes after the work"});
      return;
    }
    if (memory.lease.stream < 0) {
      Report({.kind = Finding::Kind::kLifetime,
              .first = At(use.event),
              .second = At(EventOfLease(lease)),
              .message =
                  absl::StrCat(log_.Describe(use.event), " uses ",
                               log_.DescribeLease(lease), " before the lease"),
              .missing = "the lease comes before the work"});
      return;
    }
    if (memory.lease.stream != use.stream &&
        !IsBefore(memory.lease, clock(use.stream))) {
      Report(
          {.kind = Finding::Kind::kLifetime,
           .first = At(memory.lease.event),
           .second = At(use.event),
           .message = absl::StrCat(
               log_.Describe(use.event), " uses ", log_.DescribeLease(lease),
               ", but may run before the work of that stream after which the "
               "memory is free"),
           .missing =
               Wait(use.stream, memory.lease.stream, "after the allocation")});
    }
    memory.cells.Visit(
        access.begin, access.end, [&](int64_t begin, int64_t end, Cell& cell) {
          Order(use, access.writes, cell.write, true, begin, end);
          if (access.writes) {
            for (const Use& read : cell.reads) {
              Order(use, true, read, false, begin, end);
            }
            cell.reads.clear();
            cell.write = use;
            return;
          }
          for (Use& read : cell.reads) {
            if (read.stream == use.stream) {
              read = use;
              return;
            }
          }
          cell.reads.push_back(use);
        });
  }

  std::string Wait(int waiting, int awaited, const std::string& where) const {
    return absl::StrCat("a Wait of ",
                        log_.streams[static_cast<size_t>(waiting)],
                        " for a point of ",
                        log_.streams[static_cast<size_t>(awaited)], " ", where);
  }

  void Order(const Use& use, bool writes, const Use& other, bool other_writes,
             int64_t begin, int64_t end) {
    if (other.stream < 0 || other.stream == use.stream) return;
    ++result_.pairs;
    if (IsBefore(other, clock(use.stream))) return;
    const int64_t lease = log_.LeaseAt(begin);
    const int64_t base = log_.leases[static_cast<size_t>(lease)].begin;
    Report({.kind = Finding::Kind::kRace,
            .first = At(other.event),
            .second = At(use.event),
            .message = absl::StrCat(log_.Describe(use.event),
                                    writes ? " writes to" : " reads", " bytes ",
                                    begin - base, " to ", end - base, " of ",
                                    log_.DescribeLease(lease), ", which ",
                                    log_.Describe(other.event),
                                    other_writes ? " writes to" : " reads",
                                    "; no event orders the two"),
            .missing = Wait(use.stream, other.stream, "after the latter")});
  }

  void Release(int64_t index, const LoggedEvent& e) {
    Memory& memory = memory_[static_cast<size_t>(e.id)];
    memory.released = index;
    Clock after = clock(e.stream);
    Join(after, host_);
    for (const int64_t point : memory.declared) {
      Join(after, points_[static_cast<size_t>(point)]);
    }
    std::optional<Use> late;
    const auto check = [&](const Use& use) {
      if (use.stream >= 0 && use.stream != e.stream && !IsBefore(use, after)) {
        late = use;
      }
    };
    memory.cells.ForEach([&](int64_t, int64_t, const Cell& cell) {
      check(cell.write);
      for (const Use& read : cell.reads) check(read);
    });
    memory.cells.Clear();
    if (!late.has_value()) return;
    Report({.kind = Finding::Kind::kLifetime,
            .first = At(late->event),
            .second = At(index),
            .message =
                absl::StrCat(log_.DescribeLease(e.id), " are released while ",
                             log_.Describe(late->event), " may still use them"),
            .missing = absl::StrCat(
                "Block::UsedOn(",
                log_.streams[static_cast<size_t>(late->stream)], ")")});
  }

  Source SourceOf(int64_t lease) const {
    const Memory& memory = memory_[static_cast<size_t>(lease)];
    if (log_.leases[static_cast<size_t>(lease)].memory_class ==
        MemoryClass::kParameter) {
      return {lease, memory.version, -1};
    }
    return memory.source;
  }

  /// Follows the values of sharded parameters through copies and gathers.
  void FollowGathers(int64_t index, const LoggedEvent& e) {
    const bool gathers = e.kind == Kind::kCollective &&
                         log_.collectives[static_cast<size_t>(e.id)].kind ==
                             CollectiveKind::kAllGather;
    if (e.kind == Kind::kCollective && !gathers) return;
    Source source;
    std::set<int64_t> written;
    bool writes_shards = false;
    for (uint32_t i = 0; i < e.num_accesses; ++i) {
      const LoggedAccess& access = log_.accesses[e.first_access + i];
      const int64_t lease = log_.LeaseAt(access.begin);
      if (lease < 0) continue;
      if (access.writes) {
        written.insert(lease);
        writes_shards = writes_shards ||
                        log_.leases[static_cast<size_t>(lease)].memory_class ==
                            MemoryClass::kParameter;
      } else if (gathers || access.carries) {
        const Source found = SourceOf(lease);
        if (found.shards >= 0) source = found;
      }
    }
    // A work that writes to shards updates them, or takes them from gathered
    // parameters that the program changed.
    if (e.kind == Kind::kWork && !writes_shards) CheckFresh(index, e);
    if (source.event < 0) source.event = index;
    for (const int64_t lease : written) {
      Memory& memory = memory_[static_cast<size_t>(lease)];
      ++memory.version;
      memory.source = source;
    }
  }

  void CheckFresh(int64_t index, const LoggedEvent& e) {
    for (uint32_t i = 0; i < e.num_accesses; ++i) {
      const LoggedAccess& access = log_.accesses[e.first_access + i];
      const int64_t lease = log_.LeaseAt(access.begin);
      if (access.writes || lease < 0) continue;
      if (log_.leases[static_cast<size_t>(lease)].memory_class !=
          MemoryClass::kGatheredParameter) {
        continue;
      }
      const Memory& gathered = memory_[static_cast<size_t>(lease)];
      if (gathered.version == 0) {
        Report({.kind = Finding::Kind::kStale,
                .first = At(gathered.lease.event),
                .second = At(index),
                .message = absl::StrCat(log_.Describe(index), " reads ",
                                        log_.DescribeLease(lease),
                                        ", to which nothing was gathered"),
                .missing = "an all-gather between the lease and the read"});
      }
      const Source& source = gathered.source;
      if (source.shards < 0) continue;
      const Memory& shards = memory_[static_cast<size_t>(source.shards)];
      if (shards.version == source.version) continue;
      Report(
          {.kind = Finding::Kind::kStale,
           .first = At(source.event),
           .second = At(index),
           .message = absl::StrCat(
               log_.Describe(index), " reads parameters that ",
               log_.Describe(source.event), " gathered before their shards, ",
               log_.DescribeLease(source.shards), ", were updated"),
           .missing = "an all-gather between the update and the read"});
    }
  }

  const RankLog& log_;
  Clock host_;
  std::vector<Clock> clocks_;
  std::vector<Clock> points_;
  std::vector<Memory> memory_;
  OrderResult result_;
  std::set<std::tuple<Finding::Kind, std::pair<int, int>, std::pair<int, int>>>
      reported_;
};

}  // namespace

OrderResult CheckOrder(const RankLog& log) { return OrderChecker(log).Run(); }

}  // namespace crosshatch::verify
