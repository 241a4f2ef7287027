// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/local/local_group.h"

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/kernel_copy.h"
#include "crosshatch/comm/reduce_segments.h"

namespace crosshatch::internal {
namespace {

using Cursors = absl::InlinedVector<SegmentCursor, 8>;

/// The least time that a member may take after it has met the others. It
/// copies, and waits for no peer, so a short timeout for waits may be too short
/// for it.
constexpr absl::Duration kLeastInside = absl::Seconds(5);

}  // namespace

LocalGroup::LocalGroup(WaitGraph* graph, const GroupKey& key,
                       std::vector<AgentId> host_agents,
                       OnGroupBroken on_broken)
    : group_(Describe(key)),
      world_ranks_(key.world_ranks),
      on_broken_(std::move(on_broken)),
      collectives_(graph, group_, world_ranks_, host_agents,
                   [this](const absl::Status& failure) {
                     return on_broken_(*this, failure);
                   }),
      barrier_(size()),
      gathers_(graph, group_, world_ranks_, host_agents,
               [this](const absl::Status& failure) {
                 return on_broken_(*this, failure);
               }),
      gather_barrier_(size()),
      slots_(size()),
      fingerprints_(size()) {}

void LocalGroup::Offer(int member, const Collective& collective) {
  Slot& slot = slots_[member];
  slot.collective = &collective;
  if (slot.queue != nullptr) slot.before = slot.queue->Record();
}

absl::Status LocalGroup::Agree(int member, const Fingerprint& fingerprint) {
  fingerprints_[member] = &fingerprint;
  return collectives_.Meet(
      member,
      [&] { return CheckAgreement(group_, world_ranks_, fingerprints_); },
      [&] { return Describe(fingerprint); });
}

void LocalGroup::Move(int member, int64_t sequence,
                      const KernelTable& kernels) {
  Slot& slot = slots_[member];
  const Collective& collective = *slot.collective;
  if (slot.queue != nullptr) {
    AwaitPeers(member, &Slot::before, *slot.queue);
  } else if (collective.kind == CollectiveKind::kBarrier) {
    return;
  }
  const auto describe = [&] {
    Fingerprint fingerprint;
    fingerprint.Assign(collective, sequence);
    return Describe(fingerprint);
  };
  const absl::FunctionRef<std::string()> what = describe;
  slot.in_collective.Enter(what);
  MoveData(member, kernels, slot.queue);
  Join(member, &Slot::after, slot.queue);
  slot.in_collective.Leave();
}

void LocalGroup::Join(int me, Event Slot::*point, Stream* queue) {
  if (queue != nullptr) slots_[me].*point = queue->Record();
  slots_[me].in_collective.Step();
  barrier_.ArriveAndWait();
  slots_[me].in_collective.Step();
  // A slot is not written again before all have come to the next collective,
  // and so have read it.
  if (queue != nullptr) AwaitPeers(me, point, *queue);
}

void LocalGroup::AwaitPeers(int me, Event Slot::*point, Stream& queue) {
  for (int i = 1; i < size(); ++i) {
    queue.Wait(slots_[(me + i) % size()].*point);
  }
}

void LocalGroup::Copy(const SegmentList& from, const SegmentList& to,
                      int64_t begin, int64_t count, DType dtype,
                      const KernelTable& kernels, Stream* queue) {
  const int64_t elem_bytes = SizeOf(dtype);
  const SegmentCursor source(from, elem_bytes, begin);
  const SegmentCursor target(to, elem_bytes, begin);
  if (queue == nullptr) return CopySegments(source, target, count, elem_bytes);
  queue->Launch([&](KernelContext& on) {
    CopyByKernels(source, target, count, dtype, kernels, on);
  });
}

void LocalGroup::Reduce(int me,
                        absl::FunctionRef<const SegmentList&(int rank)> of_rank,
                        int64_t begin, int64_t count,
                        const KernelTable& kernels, Stream* queue) {
  const Collective& mine = of(me);
  const int64_t elem_bytes = SizeOf(mine.dtype);
  Cursors sources;
  for (int r = 0; r < size(); ++r) {
    sources.emplace_back(of_rank(r), elem_bytes, begin);
  }
  const SegmentCursor to(mine.recv[0], elem_bytes, begin);
  const auto reduce = [&](KernelContext& on) {
    ReduceSegments(mine, absl::MakeSpan(sources), to, count, kernels, on);
  };
  if (queue != nullptr) return queue->Launch(reduce);
  // No pool: the ranks are the parallelism, and compute streams need the pools.
  KernelContext context;
  reduce(context);
}

void LocalGroup::MoveData(int me, const KernelTable& kernels, Stream* queue) {
  const Collective& mine = of(me);
  const int n = size();
  const auto copy = [&](const SegmentList& from, const SegmentList& to) {
    Copy(from, to, 0, NumElements(to), mine.dtype, kernels, queue);
  };
  switch (mine.kind) {
    case CollectiveKind::kAllGather:
      // Each rank begins with itself, so that not all read from one peer.
      for (int i = 0; i < n; ++i) {
        const int r = (me + i) % n;
        copy(of(r).send[0], mine.recv[r]);
      }
      break;
    case CollectiveKind::kReduceScatter:
      Reduce(
          me, [&](int r) -> const SegmentList& { return of(r).send[me]; }, 0,
          NumElements(mine.recv[0]), kernels, queue);
      break;
    case CollectiveKind::kAllReduce:
      AllReduce(me, kernels, queue);
      break;
    case CollectiveKind::kAllToAll:
      for (int i = 0; i < n; ++i) {
        const int r = (me + i) % n;
        copy(of(r).send[me], mine.recv[r]);
      }
      break;
    case CollectiveKind::kBroadcast:
      if (!mine.recv.empty()) copy(of(mine.root).send[0], mine.recv[0]);
      break;
    case CollectiveKind::kBarrier:
      break;
  }
}

void LocalGroup::AllReduce(int me, const KernelTable& kernels, Stream* queue) {
  // In place works: this rank alone reads piece `me` of each buffer, and writes
  // only that piece of its own until all have finished reading.
  const Collective& mine = of(me);
  const int n = size();
  const int64_t count = NumElements(mine.recv[0]);
  const auto begin = [&](int r) { return PieceBegin(count, n, r); };
  Reduce(
      me, [&](int r) -> const SegmentList& { return of(r).send[0]; }, begin(me),
      begin(me + 1) - begin(me), kernels, queue);
  if (n == 1) return;
  Join(me, &Slot::summed, queue);
  for (int i = 1; i < n; ++i) {
    const int r = (me + i) % n;
    Copy(of(r).recv[0], mine.recv[0], begin(r), begin(r + 1) - begin(r),
         mine.dtype, kernels, queue);
  }
}

absl::StatusOr<std::vector<std::string>> LocalGroup::Gather(
    int member, const std::string& blob, const std::string& what) {
  slots_[member].blob = &blob;
  const auto describe = [&] { return what; };
  const absl::FunctionRef<std::string()> describes = describe;
  CH_RETURN_IF_ERROR(gathers_.Meet(
      member, [] { return absl::OkStatus(); }, describes));
  InFlight& in_flight = slots_[member].in_gather;
  in_flight.Enter(describes);
  std::vector<std::string> blobs;
  blobs.reserve(slots_.size());
  for (const Slot& slot : slots_) blobs.push_back(*slot.blob);
  in_flight.Step();
  gather_barrier_.ArriveAndWait();
  in_flight.Leave();
  return blobs;
}

void LocalGroup::Fail(const absl::Status& failure) {
  collectives_.Fail(failure);
  gathers_.Fail(failure);
}

std::vector<LateWait> LocalGroup::FindLate(const WatchMoment& now,
                                           absl::Duration least) {
  const absl::Duration inside = std::max(least, kLeastInside);
  std::vector<LateWait> late;
  const auto add = [&late](std::optional<LateWait> found) {
    if (found.has_value()) late.push_back(*std::move(found));
  };
  add(collectives_.FindLate(now, least));
  add(gathers_.FindLate(now, least));
  add(FindInside(&Slot::in_collective, now, inside));
  add(FindInside(&Slot::in_gather, now, inside));
  return late;
}

std::optional<LateWait> LocalGroup::FindInside(InFlight Slot::*in_flight,
                                               const WatchMoment& now,
                                               absl::Duration least) {
  std::vector<std::optional<InFlight::Stay>> stays;
  std::optional<int> first;
  for (Slot& slot : slots_) {
    stays.push_back((slot.*in_flight).Find(now, least));
    if (!stays.back().has_value()) continue;
    first = std::min(first.value_or(stays.back()->stage), stays.back()->stage);
  }
  if (!first.has_value()) return std::nullopt;
  // The members that are furthest back keep the others waiting.
  LateWait late{.group = group_, .met = true};
  for (int i = 0; i < size(); ++i) {
    if (!stays[i].has_value()) continue;
    if (stays[i]->stage > *first) {
      late.waiting.push_back(world_ranks_[i]);
      continue;
    }
    late.missing.push_back(world_ranks_[i]);
    late.age = std::max(late.age, stays[i]->age);
    absl::StrAppend(&late.text, late.text.empty() ? "" : ", ", "rank ",
                    world_ranks_[i], " met the others in ", stays[i]->what,
                    *first % 2 == 0 ? " and does not end its part of it"
                                    : " and does not leave its barrier");
  }
  return late;
}

}  // namespace crosshatch::internal
