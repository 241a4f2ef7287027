// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <deque>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/verify/job_log.h"

namespace crosshatch::verify {
namespace {

using Kind = LoggedEvent::Kind;

/// Runs all streams of all logs as far as they come. What may run once may
/// always run, so that any order of steps ends in the same state: if one does
/// not block, none does.
class Simulation {
 public:
  /// \param is_inline whether work of the compute stream runs when it is
  /// issued,
  ///     as on the CPU, so that the host waits for it.
  Simulation(const JobLog& job, bool is_inline)
      : job_(job), is_inline_(is_inline) {
    for (const RankLog& log : job.logs) {
      Rank& rank = ranks_.emplace_back();
      rank.queues.resize(log.streams.size());
      rank.reached.resize(static_cast<size_t>(log.points));
      rank.arrived.resize(log.groups.size());
      rank.exchanged.resize(log.groups.size());
      rank.recorded_on.resize(static_cast<size_t>(log.points), -1);
      for (const LoggedEvent& e : log.events) {
        if (e.kind == Kind::kRecord) {
          rank.recorded_on[static_cast<size_t>(e.id)] = e.stream;
        }
      }
    }
    for (size_t r = 0; r < job.logs.size(); ++r) {
      const RankLog& log = job.logs[r];
      auto& peers = ranks_[r].peers;
      peers.resize(log.groups.size());
      for (size_t g = 0; g < log.groups.size(); ++g) {
        std::set<std::pair<int, int>> found;
        for (const int member : log.groups[g].world_ranks) {
          const std::optional<int> there =
              job.GroupOf(log, static_cast<int>(g), member);
          // CheckMatching reports a missing group.
          if (there.has_value()) {
            found.insert({job.log_of[static_cast<size_t>(member)], *there});
          }
        }
        peers[g].assign(found.begin(), found.end());
      }
    }
  }

  std::vector<Finding> Run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < ranks_.size(); ++r) moved = Advance(r) || moved;
    }
    for (size_t r = 0; r < ranks_.size(); ++r) {
      for (int agent = kHost; agent < NumStreams(r); ++agent) {
        if (Blocked(r, agent)) return {Describe({r, agent})};
      }
    }
    return {};
  }

 private:
  static constexpr int kHost = -1;
  /// A stream of a log, or its host.
  using Agent = std::pair<size_t, int>;

  struct Rank {
    size_t issued = 0;  ///< Events of the log that the host has passed.
    std::vector<std::deque<int64_t>> queues;
    std::vector<bool> reached;     ///< By point.
    std::vector<int> recorded_on;  ///< By point: the stream; -1: none.
    /// By group: collectives that the stream, or exchanges that the host, has
    /// come to; one of them may be blocked.
    std::vector<int64_t> arrived;
    std::vector<int64_t> exchanged;
    std::set<int64_t> at;  ///< Blocked collectives and exchanges, counted.
    std::vector<std::vector<std::pair<int, int>>> peers;  ///< By group.
  };

  const RankLog& Log(size_t r) const { return job_.logs[r]; }
  int NumStreams(size_t r) const {
    return static_cast<int>(Log(r).streams.size());
  }
  const LoggedEvent& EventAt(size_t r, int64_t event) const {
    return Log(r).events[static_cast<size_t>(event)];
  }
  bool Blocked(size_t r, int agent) const {
    return agent == kHost
               ? ranks_[r].issued < Log(r).events.size()
               : !ranks_[r].queues[static_cast<size_t>(agent)].empty();
  }

  bool Advance(size_t r) {
    Rank& rank = ranks_[r];
    bool moved = false;
    for (bool again = true; again;) {
      again = false;
      for (int s = 0; s < NumStreams(r); ++s) {
        auto& queue = rank.queues[static_cast<size_t>(s)];
        while (!queue.empty() && Runs(r, queue.front())) {
          queue.pop_front();
          again = true;
        }
      }
      while (rank.issued < Log(r).events.size() && HostPasses(r)) {
        again = true;
      }
      moved = moved || again;
    }
    return moved;
  }

  bool HostPasses(size_t r) {
    Rank& rank = ranks_[r];
    if (is_inline_ && !rank.queues[0].empty()) return false;
    const auto event = static_cast<int64_t>(rank.issued);
    const LoggedEvent& e = EventAt(r, event);
    switch (e.kind) {
      case Kind::kHostWait:
        if (!rank.reached[static_cast<size_t>(e.id)]) return false;
        break;
      case Kind::kExchange:
        if (!Meets(r, event, static_cast<int>(e.id), &Rank::exchanged)) {
          return false;
        }
        break;
      case Kind::kWork:
      case Kind::kCollective:
      case Kind::kRecord:
      case Kind::kWait:
        rank.queues[static_cast<size_t>(e.stream)].push_back(event);
        break;
      case Kind::kLease:
      case Kind::kUse:
      case Kind::kRelease:
        break;
    }
    ++rank.issued;
    return true;
  }

  bool Runs(size_t r, int64_t event) {
    const LoggedEvent& e = EventAt(r, event);
    switch (e.kind) {
      case Kind::kRecord:
        ranks_[r].reached[static_cast<size_t>(e.id)] = true;
        return true;
      case Kind::kWait:
        return ranks_[r].reached[static_cast<size_t>(e.id)];
      case Kind::kCollective:
        return Meets(r, event,
                     Log(r).collectives[static_cast<size_t>(e.id)].group,
                     &Rank::arrived);
      default:
        return true;
    }
  }

  /// Arrives at a collective or exchange of the group; returns whether all
  /// members have.
  bool Meets(size_t r, int64_t event, int group,
             std::vector<int64_t> Rank::*arrived) {
    Rank& rank = ranks_[r];
    const auto g = static_cast<size_t>(group);
    if (rank.at.insert(event).second) ++(rank.*arrived)[g];
    const int64_t number = (rank.*arrived)[g];
    for (const auto& [other, there] : rank.peers[g]) {
      if ((ranks_[static_cast<size_t>(other)].*
           arrived)[static_cast<size_t>(there)] < number) {
        return false;
      }
    }
    rank.at.erase(event);
    return true;
  }

  /// The event that blocks the agent.
  int64_t EventOf(Agent agent) const {
    const Rank& rank = ranks_[agent.first];
    if (agent.second != kHost) {
      return rank.queues[static_cast<size_t>(agent.second)].front();
    }
    if (is_inline_ && !rank.queues[0].empty()) return rank.queues[0].front();
    return static_cast<int64_t>(rank.issued);
  }

  /// Returns whom a blocked agent waits for; itself if nobody can end the wait.
  Agent WaitsFor(Agent agent) const {
    const auto& [r, which] = agent;
    const Rank& rank = ranks_[r];
    const LoggedEvent& e = EventAt(r, EventOf(agent));
    if (e.kind == Kind::kWait || e.kind == Kind::kHostWait) {
      const int stream = rank.recorded_on[static_cast<size_t>(e.id)];
      if (stream < 0) return agent;
      // If the stream has passed all that was issued, the host has not issued
      // the point.
      return {r, Blocked(r, stream) ? stream : kHost};
    }
    const bool exchanges = e.kind == Kind::kExchange;
    const int group = exchanges
                          ? static_cast<int>(e.id)
                          : Log(r).collectives[static_cast<size_t>(e.id)].group;
    const auto& mine = exchanges ? rank.exchanged : rank.arrived;
    for (const auto& [other, there] : rank.peers[static_cast<size_t>(group)]) {
      const Rank& peer = ranks_[static_cast<size_t>(other)];
      const auto& theirs = exchanges ? peer.exchanged : peer.arrived;
      if (theirs[static_cast<size_t>(there)] >=
          mine[static_cast<size_t>(group)]) {
        continue;
      }
      const auto o = static_cast<size_t>(other);
      if (exchanges) return {o, kHost};
      const std::string& name =
          Log(o).groups[static_cast<size_t>(there)].stream;
      for (int s = 0; s < NumStreams(o); ++s) {
        if (Log(o).streams[static_cast<size_t>(s)] == name && Blocked(o, s)) {
          return {o, s};
        }
      }
      return {o, kHost};
    }
    return agent;
  }

  std::string NameOf(Agent agent) const {
    const RankLog& log = Log(agent.first);
    return absl::StrCat("rank ", log.rank, " ",
                        agent.second == kHost
                            ? "host"
                            : log.streams[static_cast<size_t>(agent.second)]);
  }

  Finding Describe(Agent agent) const {
    std::vector<Agent> path;
    while (std::find(path.begin(), path.end(), agent) == path.end()) {
      path.push_back(agent);
      if (!Blocked(agent.first, agent.second)) break;
      agent = WaitsFor(agent);
    }
    auto begin = std::find(path.begin(), path.end(), agent);
    // What waits for an agent that has ended.
    if (!Blocked(agent.first, agent.second)) begin = path.end() - 2;
    path.erase(path.begin(), begin);
    Finding finding = {.kind = Finding::Kind::kCircularWait};
    std::vector<std::string> lines;
    for (const Agent& a : path) {
      if (!Blocked(a.first, a.second)) {
        lines.push_back(absl::StrCat(NameOf(a), " has ended"));
        continue;
      }
      lines.push_back(absl::StrCat(NameOf(a), " is blocked at ",
                                   Log(a.first).Describe(EventOf(a))));
    }
    const auto at = [&](const Agent& a) -> EventOfRank {
      return {Log(a.first).rank, Blocked(a.first, a.second) ? EventOf(a) : -1};
    };
    finding.first = at(path.front());
    finding.second = at(path[path.size() > 1 ? 1 : 0]);
    finding.message =
        absl::StrCat(is_inline_ ? "if compute runs inline, " : "",
                     absl::StrJoin(lines, ", which waits for the next: "),
                     !Blocked(agent.first, agent.second) || path.size() == 1
                         ? "; nothing ends this wait"
                         : "; the last waits for the first");
    finding.missing =
        path.size() > 1
            ? "one of these waits has to be issued in another order"
            : "the Record of the point, or the collective on the other rank";
    return finding;
  }

  const JobLog& job_;
  const bool is_inline_;
  std::vector<Rank> ranks_;
};

}  // namespace

std::vector<Finding> CheckProgress(const JobLog& job) {
  std::vector<Finding> findings = Simulation(job, /*is_inline=*/false).Run();
  if (!findings.empty()) return findings;
  return Simulation(job, /*is_inline=*/true).Run();
}

}  // namespace crosshatch::verify
