// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/verify/job_log.h"

#include <algorithm>

#include "crosshatch/base/byte_hash.h"

namespace crosshatch::verify {

const char* Name(Finding::Kind kind) {
  switch (kind) {
    case Finding::Kind::kMismatch:
      return "mismatch";
    case Finding::Kind::kRace:
      return "race";
    case Finding::Kind::kLifetime:
      return "lifetime";
    case Finding::Kind::kCircularWait:
      return "circular wait";
    case Finding::Kind::kLeak:
      return "leak";
    case Finding::Kind::kStale:
      return "stale parameters";
    case Finding::Kind::kGradient:
      return "gradient";
    case Finding::Kind::kBytes:
      return "bytes";
  }
  return "unknown";
}

std::optional<int> JobLog::GroupOf(const RankLog& log, int group,
                                   int world_rank) const {
  const LoggedGroup& wanted = log.groups[static_cast<size_t>(group)];
  const RankLog& other = LogOf(world_rank);
  const auto is_alike = [&](const LoggedGroup& g) {
    return g.name == wanted.name && g.stream == wanted.stream &&
           g.world_ranks.size() == wanted.world_ranks.size();
  };
  if (other.rank == world_rank) {
    for (size_t i = 0; i < other.groups.size(); ++i) {
      const LoggedGroup& g = other.groups[i];
      if (is_alike(g) && g.world_ranks == wanted.world_ranks) {
        return static_cast<int>(i);
      }
    }
    return std::nullopt;
  }
  // The log of another rank of its class has the same groups in the same
  // order, of other ranks.
  const auto position =
      std::count_if(log.groups.begin(), log.groups.begin() + group, is_alike);
  int64_t passed = 0;
  for (size_t i = 0; i < other.groups.size(); ++i) {
    if (!is_alike(other.groups[i])) continue;
    if (passed++ == position) return static_cast<int>(i);
  }
  return std::nullopt;
}

std::map<std::string, uint64_t> LabelOrigins(const RankLog& log) {
  std::vector<uint64_t> of_lease(log.leases.size());
  std::map<std::string, uint64_t> origins;
  for (const LoggedEvent& e : log.events) {
    const bool gathers = e.kind == LoggedEvent::Kind::kCollective &&
                         log.collectives[static_cast<size_t>(e.id)].kind ==
                             CollectiveKind::kAllGather;
    if (e.kind != LoggedEvent::Kind::kWork && !gathers) continue;
    uint64_t read = 0;
    for (uint32_t i = 0; i < e.num_accesses; ++i) {
      const LoggedAccess& access = log.accesses[e.first_access + i];
      const int64_t lease = log.LeaseAt(access.begin);
      if (lease < 0) continue;
      uint64_t& origin = of_lease[static_cast<size_t>(lease)];
      if (!access.writes && (gathers || access.carries)) read |= origin;
      if (!access.writes || gathers) continue;
      if (e.origin != 0) {
        origin = HashBytes(origin, &e.origin, sizeof e.origin);
      } else if (origin == 0) {
        origin = read;
      }
    }
    if (gathers) {
      origins.emplace(log.collectives[static_cast<size_t>(e.id)].label, read);
    }
  }
  return origins;
}

}  // namespace crosshatch::verify
