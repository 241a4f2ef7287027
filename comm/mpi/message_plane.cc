// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/mpi/message_plane.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/event_sink.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/mpi/transfer.h"
#include "crosshatch/comm/reduce_segments.h"
#include "crosshatch/comm/route.h"
#include "crosshatch/comm/segment_cursor.h"
#include "crosshatch/tensor/kernels/kernel_table.h"

namespace crosshatch::internal {
namespace {

/// Data of at most this size are payloads of the agreement. With a fingerprint
/// of usual length that is one eager message in shared memory.
constexpr int64_t kMaxPayloadBytes = 3072;
/// The maximum that a member sends in an all-reduce in which every member adds
/// all.
constexpr int64_t kMaxDirectBytes = int64_t{1} << 16;
/// Sizes of pieces to move, and of pieces to sum. The latter are in scratch
/// memory, one per rank, and should stay in the cache.
constexpr int64_t kMovedPieceBytes = int64_t{1} << 20;
constexpr int64_t kSummedPieceBytes = int64_t{1} << 18;
/// The size of the tag of the sender's messages, with which a payload begins.
/// The data after it are aligned to it.
constexpr int64_t kTagBytes = 16;

using Cursors = absl::InlinedVector<SegmentCursor, 8>;

Segment OneRun(const void* data, int64_t elems) {
  // Read only.
  return {.data = const_cast<void*>(data), .run_elems = elems};
}

/// Returns the data in a payload; null if they are sent separately.
const char* DataOf(const Payloads& payloads, int member) {
  const absl::string_view payload = payloads.Of(member);
  return payload.size() > kTagBytes ? payload.data() + kTagBytes : nullptr;
}

int TagOf(const Payloads& payloads, int member) {
  int32_t tag = 0;
  const absl::string_view payload = payloads.Of(member);
  CH_CHECK(payload.size() >= sizeof(tag)) << "a payload without a tag";
  std::memcpy(&tag, payload.data(), sizeof(tag));
  return tag;
}

/// One process's side of a group.
class MessagePlane final : public DataPlane {
 public:
  MessagePlane(std::shared_ptr<ProcessJob> job, std::shared_ptr<JobGroup> group,
               RankContext& context, int64_t max_message_bytes)
      : job_(std::move(job)),
        group_(std::move(group)),
        sink_(context.sink()),
        kernels_(context.kernels()),
        max_message_bytes_(max_message_bytes),
        sends_(static_cast<size_t>(size())),
        receives_(static_cast<size_t>(size())),
        transfer_(*job_, *group_) {}

  void Offer(const Collective& collective, PayloadRoom room) override;
  absl::Status Issue(const Collective& collective, int64_t sequence,
                     const Payloads& payloads, Stream& queue) override;
  /// A transfer ends by itself when the job has failed.
  void Abort() override {}

 private:
  int size() const { return group_->size(); }
  int me() const { return group_->me; }

  bool IsDirect(const Collective& collective) const;
  /// Moves sends_ and receives_. Data of the first step (0) may be payloads.
  absl::Status MoveLists(const Collective& collective, const Payloads& payloads,
                         int step);
  absl::Status MoveAndReduce(const Collective& collective,
                             const Payloads& payloads);
  /// Adds the sends that are no payloads.
  void AddSends(int64_t elem_bytes, int step);
  int64_t PieceElems(const Collective& collective, int64_t bytes) const {
    return std::min(bytes, max_message_bytes_) / SizeOf(collective.dtype);
  }

  const std::shared_ptr<ProcessJob> job_;
  const std::shared_ptr<JobGroup> group_;
  EventSink* const sink_;
  const KernelTable& kernels_;
  const int64_t max_message_bytes_;

  // Used by the stream's worker alone.
  SpanRow spans_;
  /// Of the first step; that of the second is the next one.
  int32_t tag_ = 0;
  std::vector<Part> sends_;
  std::vector<Part> receives_;
  Transfer transfer_;
};

void MessagePlane::Offer(const Collective& collective, PayloadRoom room) {
  if (collective.kind == CollectiveKind::kBarrier) return;
  // Small sums are computed by all members, which saves a step.
  PlanParts(collective, me(), /*in_pieces=*/!IsDirect(collective),
            absl::MakeSpan(sends_), absl::MakeSpan(receives_));
  tag_ = job_->NextTag();
  const int64_t elem_bytes = SizeOf(collective.dtype);
  for (int r = 0; r < size(); ++r) {
    if (r == me()) continue;
    const Part& part = sends_[r];
    int64_t bytes = part.elems * elem_bytes;
    if (bytes > kMaxPayloadBytes) bytes = 0;
    char* const payload = room(r, kTagBytes + bytes);
    std::memcpy(payload, &tag_, sizeof(tag_));
    if (bytes == 0) continue;
    const Segment to = OneRun(payload + kTagBytes, part.elems);
    CopySegments(SegmentCursor(part.list, elem_bytes, part.begin),
                 SegmentCursor({&to, 1}, elem_bytes), part.elems, elem_bytes);
  }
}

absl::Status MessagePlane::Issue(const Collective& collective, int64_t,
                                 const Payloads& payloads, Stream& queue) {
  if (sink_ != nullptr && sink_->wants_spans()) {
    spans_ = {.sink = sink_, .name = &queue.name()};
  }
  if (collective.kind == CollectiveKind::kBarrier) return absl::OkStatus();
  if (!IsReduction(collective.kind)) return MoveLists(collective, payloads, 0);
  CH_RETURN_IF_ERROR(MoveAndReduce(collective, payloads));
  if (collective.kind == CollectiveKind::kReduceScatter ||
      IsDirect(collective) || size() == 1) {
    return absl::OkStatus();
  }
  PlanGatherOfPieces(collective, me(), absl::MakeSpan(sends_),
                     absl::MakeSpan(receives_));
  return MoveLists(collective, payloads, 1);
}

void MessagePlane::AddSends(int64_t elem_bytes, int step) {
  // Each rank begins with the next one, so that not all wait for one peer.
  for (int i = 1; i < size(); ++i) {
    const int r = (me() + i) % size();
    const Part& part = sends_[r];
    if (step == 0 && part.elems * elem_bytes <= kMaxPayloadBytes) continue;
    transfer_.AddSend(r, tag_ + step, part.list, part.begin, part.elems);
  }
}

bool MessagePlane::IsDirect(const Collective& collective) const {
  if (collective.kind != CollectiveKind::kAllReduce) return false;
  const int64_t bytes =
      NumElements(collective.recv[0]) * SizeOf(collective.dtype);
  return bytes <= kMaxPayloadBytes && bytes * (size() - 1) <= kMaxDirectBytes;
}

absl::Status MessagePlane::MoveLists(const Collective& collective,
                                     const Payloads& payloads, int step) {
  const int64_t elem_bytes = SizeOf(collective.dtype);
  transfer_.Begin(elem_bytes, PieceElems(collective, kMovedPieceBytes), spans_);
  for (int i = 1; i < size(); ++i) {
    const int r = (me() + i) % size();
    const Part& part = receives_[r];
    if (part.elems == 0) continue;
    const char* const data = step == 0 ? DataOf(payloads, r) : nullptr;
    if (data == nullptr) {
      transfer_.AddReceive(r, TagOf(payloads, r) + step, part.list, part.begin,
                           part.elems);
      continue;
    }
    const Segment from = OneRun(data, part.elems);
    CopySegments(SegmentCursor({&from, 1}, elem_bytes),
                 SegmentCursor(part.list, elem_bytes, part.begin), part.elems,
                 elem_bytes);
  }
  AddSends(elem_bytes, step);
  const Part& own = sends_[me()];
  const Part& to = receives_[me()];
  return transfer_.Run(
      [&] {
        CopySegments(SegmentCursor(own.list, elem_bytes, own.begin),
                     SegmentCursor(to.list, elem_bytes, to.begin), to.elems,
                     elem_bytes);
      },
      [](absl::Span<const std::byte* const>, int64_t, int64_t) {});
}

absl::Status MessagePlane::MoveAndReduce(const Collective& collective,
                                         const Payloads& payloads) {
  const int64_t elem_bytes = SizeOf(collective.dtype);
  const Part& own = sends_[me()];
  SegmentCursor from(own.list, elem_bytes, own.begin);
  SegmentCursor to(receives_[me()].list, elem_bytes, receives_[me()].begin);
  // `peers` are in the order of ranks, beginning after this one.
  const auto reduce = [&](absl::Span<const std::byte* const> peers, int64_t,
                          int64_t elems) {
    absl::InlinedVector<Segment, 8> pieces(static_cast<size_t>(size()));
    Cursors sources;
    for (int r = 0; r < size(); ++r) {
      if (r == me()) {
        sources.push_back(from);
        continue;
      }
      const int i = (r - me() + size()) % size() - 1;
      pieces[r] = OneRun(peers[i], elems);
      sources.emplace_back(absl::MakeConstSpan(&pieces[r], 1), elem_bytes);
    }
    // No pool: the ranks already use all cores, and compute streams use the
    // pools.
    KernelContext context;
    ReduceSegments(collective, absl::MakeSpan(sources), to, elems, kernels_,
                   context);
    from.Skip(elems);
    to.Skip(elems);
  };
  const int64_t elems = receives_[me()].elems;
  transfer_.Begin(elem_bytes, PieceElems(collective, kSummedPieceBytes),
                  spans_);
  absl::InlinedVector<const std::byte*, 8> offered;
  for (int i = 1; i < size(); ++i) {
    const int r = (me() + i) % size();
    if (const char* const data = DataOf(payloads, r); data != nullptr) {
      offered.push_back(reinterpret_cast<const std::byte*>(data));
    } else {
      transfer_.AddToScratch(r, TagOf(payloads, r), elems);
    }
  }
  AddSends(elem_bytes, 0);
  // All members have the same number of elements, so either all are payloads or
  // none.
  const bool is_offered = elems > 0 && (size() == 1 || !offered.empty());
  return transfer_.Run(
      [&] {
        if (is_offered) reduce(offered, 0, elems);
      },
      reduce);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataPlane>> MessagePlanes::Connect(
    const GroupKey& key, int, RankContext& context, absl::Duration, Exchange) {
  return std::make_unique<MessagePlane>(job_, job_->GroupOf(key), context,
                                        max_message_bytes_);
}

}  // namespace crosshatch::internal
