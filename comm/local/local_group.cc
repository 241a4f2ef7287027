// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/local/local_group.h"

#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/reduce_segments.h"

namespace crosshatch::internal {
namespace {

using Cursors = absl::InlinedVector<SegmentCursor, 8>;

/// Copies a whole list.
void Copy(const SegmentList& from, const SegmentList& to, DType dtype) {
  const int64_t bytes = SizeOf(dtype);
  CopySegments(SegmentCursor(from, bytes), SegmentCursor(to, bytes),
               NumElements(to), bytes);
}

}  // namespace

LocalGroup::LocalGroup(WaitGraph* graph, const GroupKey& key,
                       std::vector<AgentId> host_agents,
                       OnGroupBroken on_broken)
    : group_(Describe(key)),
      world_ranks_(key.world_ranks),
      on_broken_(std::move(on_broken)),
      collectives_(
          graph, group_, world_ranks_, host_agents,
          [this](const absl::Status& failure) { on_broken_(*this, failure); }),
      barrier_(size()),
      gathers_(
          graph, group_, world_ranks_, host_agents,
          [this](const absl::Status& failure) { on_broken_(*this, failure); }),
      gather_barrier_(size()),
      slots_(size()),
      fingerprints_(size()) {}

absl::Status LocalGroup::Run(int member, const Collective& collective,
                             const Fingerprint& fingerprint,
                             const KernelTable& kernels) {
  slots_[member].collective = &collective;
  fingerprints_[member] = &fingerprint;
  CH_RETURN_IF_ERROR(collectives_.Meet(
      member,
      [&] { return CheckAgreement(group_, world_ranks_, fingerprints_); },
      [&] { return Describe(fingerprint); }));
  if (collective.kind == CollectiveKind::kBarrier) return absl::OkStatus();
  Move(member, kernels);
  barrier_.ArriveAndWait();
  return absl::OkStatus();
}

void LocalGroup::Move(int me, const KernelTable& kernels) {
  const Collective& mine = of(me);
  const int n = size();
  const int64_t elem_bytes = SizeOf(mine.dtype);
  switch (mine.kind) {
    case CollectiveKind::kAllGather:
      // Each rank begins with itself, so that not all read one peer at a time.
      for (int i = 0; i < n; ++i) {
        const int r = (me + i) % n;
        Copy(of(r).send[0], mine.recv[r], mine.dtype);
      }
      break;
    case CollectiveKind::kReduceScatter: {
      Cursors sources;
      for (int r = 0; r < n; ++r) {
        sources.emplace_back(of(r).send[me], elem_bytes);
      }
      ReduceSegments(mine, absl::MakeSpan(sources),
                     SegmentCursor(mine.recv[0], elem_bytes),
                     NumElements(mine.recv[0]), kernels);
      break;
    }
    case CollectiveKind::kAllReduce:
      AllReduce(me, kernels);
      break;
    case CollectiveKind::kAllToAll:
      for (int i = 0; i < n; ++i) {
        const int r = (me + i) % n;
        Copy(of(r).send[me], mine.recv[r], mine.dtype);
      }
      break;
    case CollectiveKind::kBroadcast:
      if (!mine.recv.empty()) {
        Copy(of(mine.root).send[0], mine.recv[0], mine.dtype);
      }
      break;
    case CollectiveKind::kBarrier:
      break;
  }
}

void LocalGroup::AllReduce(int me, const KernelTable& kernels) {
  // In place is fine: of all buffers only this rank reads piece `me`, and of
  // its own it writes only that until all have finished reading theirs.
  const Collective& mine = of(me);
  const int n = size();
  const int64_t elem_bytes = SizeOf(mine.dtype);
  const int64_t count = NumElements(mine.recv[0]);
  const int64_t begin = PieceBegin(count, n, me);
  Cursors sources;
  for (int r = 0; r < n; ++r) {
    sources.emplace_back(of(r).send[0], elem_bytes, begin);
  }
  ReduceSegments(mine, absl::MakeSpan(sources),
                 SegmentCursor(mine.recv[0], elem_bytes, begin),
                 PieceBegin(count, n, me + 1) - begin, kernels);
  if (n == 1) return;
  barrier_.ArriveAndWait();
  for (int i = 1; i < n; ++i) {
    const int r = (me + i) % n;
    const int64_t start = PieceBegin(count, n, r);
    CopySegments(SegmentCursor(of(r).recv[0], elem_bytes, start),
                 SegmentCursor(mine.recv[0], elem_bytes, start),
                 PieceBegin(count, n, r + 1) - start, elem_bytes);
  }
}

absl::StatusOr<std::vector<std::string>> LocalGroup::Gather(
    int member, const std::string& blob, const std::string& what) {
  slots_[member].blob = &blob;
  CH_RETURN_IF_ERROR(gathers_.Meet(
      member, [] { return absl::OkStatus(); }, [&] { return what; }));
  std::vector<std::string> blobs;
  blobs.reserve(slots_.size());
  for (const Slot& slot : slots_) blobs.push_back(*slot.blob);
  gather_barrier_.ArriveAndWait();
  return blobs;
}

void LocalGroup::Fail(const absl::Status& failure) {
  collectives_.Fail(failure);
  gathers_.Fail(failure);
}

void LocalGroup::CheckDeadline(Rendezvous::Clock::time_point now,
                               absl::Duration timeout) {
  collectives_.CheckDeadline(now, timeout);
  gathers_.CheckDeadline(now, timeout);
}

}  // namespace crosshatch::internal
