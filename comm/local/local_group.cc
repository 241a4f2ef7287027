// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/local/local_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/comm/local/local_hub.h"

namespace crosshatch::internal {
namespace {

/// The least time that a member may take after it has met the others. It
/// copies, and waits for no peer, so a short timeout for waits may be too short
/// for it.
constexpr absl::Duration kLeastInside = absl::Seconds(5);

}  // namespace

LocalGroup::LocalGroup(LocalHub& hub, const GroupKey& key,
                       const std::vector<AgentId>& host_agents,
                       absl::Duration group_timeout)
    : description(Describe(key)),
      world_ranks(key.world_ranks),
      timeout(group_timeout),
      collectives(hub.graph(), description, world_ranks, host_agents,
                  [this, &hub](const absl::Status& failure) {
                    return hub.FailGroup(*this, failure);
                  }),
      exchanges(hub.graph(), description, world_ranks, host_agents,
                [this, &hub](const absl::Status& failure) {
                  return hub.FailGroup(*this, failure);
                }),
      barrier(size()),
      slots(world_ranks.size()) {}

void LocalGroup::Fail(const absl::Status& failure) {
  collectives.Fail(failure);
  exchanges.Fail(failure);
}

std::vector<LateWait> LocalGroup::FindLate(const WatchMoment& now,
                                           absl::Duration least) {
  std::vector<LateWait> late;
  const auto add = [&late](std::optional<LateWait> found) {
    if (found.has_value()) late.push_back(*std::move(found));
  };
  add(collectives.FindLate(now, least));
  add(exchanges.FindLate(now, least));
  add(FindInside(now, std::max(least, kLeastInside)));
  return late;
}

std::optional<LateWait> LocalGroup::FindInside(const WatchMoment& now,
                                               absl::Duration least) {
  std::vector<std::optional<InFlight::Stay>> stays;
  std::optional<int> first;
  for (Slot& slot : slots) {
    stays.push_back(slot.in_flight.Find(now, least));
    if (!stays.back().has_value()) continue;
    first = std::min(first.value_or(stays.back()->stage), stays.back()->stage);
  }
  if (!first.has_value()) return std::nullopt;
  // The members that are furthest back keep the others waiting.
  LateWait late{.group = description, .met = true};
  for (int i = 0; i < size(); ++i) {
    if (!stays[i].has_value()) continue;
    if (stays[i]->stage > *first) {
      late.waiting.push_back(world_ranks[i]);
      continue;
    }
    late.missing.push_back(world_ranks[i]);
    late.age = std::max(late.age, stays[i]->age);
    absl::StrAppend(&late.text, late.text.empty() ? "" : ", ", "rank ",
                    world_ranks[i], " met the others in ", stays[i]->what,
                    *first % 2 == 0 ? " and does not end its part of it"
                                    : " and does not leave its barrier");
  }
  return late;
}

}  // namespace crosshatch::internal
