// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/local/local_planes.h"

#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "crosshatch/comm/kernel_copy.h"
#include "crosshatch/comm/local/local_group.h"
#include "crosshatch/comm/reduce_segments.h"
#include "crosshatch/comm/route.h"
#include "crosshatch/comm/segment_cursor.h"
#include "crosshatch/tensor/device_backend.h"

namespace crosshatch::internal {
namespace {

class LocalControlGroup final : public ControlGroup {
 public:
  LocalControlGroup(std::shared_ptr<LocalHub> hub, RankContext& context,
                    const GroupKey& key, int member, absl::Duration timeout)
      : hub_(std::move(hub)),
        context_(context),
        turns_(hub_->turns(context.world_rank())),
        group_(hub_->Group(key, timeout)),
        member_(member) {}

  void Bind(Stream& stream) override {
    group_->collectives.SetAgent(member_, context_.AgentOf(stream));
    if (!context_.backend().host_addressable()) slot().queue = &stream;
  }
  absl::Status Agree(const Fingerprint& fingerprint,
                     absl::FunctionRef<void(PayloadRoom)> offer) override {
    turns_.begun.fetch_add(1, std::memory_order_relaxed);
    slot().fingerprint = &fingerprint;
    // Members access each other's memory.
    offer([](int, int64_t) -> char* { return nullptr; });
    return group_->collectives.Agree(member_, fingerprint);
  }
  absl::string_view Of(int) const override { return ""; }
  void Done() override { turns_.ended.fetch_add(1, std::memory_order_relaxed); }

  absl::StatusOr<std::vector<std::string>> Gather(
      GatherOrder order, std::string blob, const std::string& what) override {
    turns_.begun.fetch_add(1, std::memory_order_relaxed);
    Rendezvous& rendezvous =
        order == GatherOrder::kOfRank ? group_->exchanges : group_->collectives;
    auto blobs = rendezvous.Gather(member_, std::move(blob), what);
    turns_.ended.fetch_add(1, std::memory_order_relaxed);
    return blobs;
  }

  absl::Status Fail(const absl::Status& failure) override {
    return hub_->FailGroup(*group_, failure);
  }

 private:
  LocalGroup::Slot& slot() { return group_->slots[member_]; }

  const std::shared_ptr<LocalHub> hub_;
  RankContext& context_;
  LocalHub::Turns& turns_;
  const std::shared_ptr<LocalGroup> group_;
  const int member_;
};

class MemoryPlane final : public DataPlane {
 public:
  MemoryPlane(std::shared_ptr<LocalGroup> group, int member,
              const KernelTable& kernels)
      : group_(std::move(group)), me_(member), kernels_(kernels) {}

  void Offer(const Collective& collective, PayloadRoom) override {
    slot().collective = &collective;
    if (slot().queue != nullptr) slot().before = slot().queue->Record();
  }
  absl::Status Issue(const Collective& collective, int64_t, const Payloads&,
                     Stream&) override;
  void Abort() override {}

 private:
  using Slot = LocalGroup::Slot;

  int size() const { return group_->size(); }
  Slot& slot() { return group_->slots[me_]; }
  const Collective& of(int member) const {
    return *group_->slots[member].collective;
  }

  void Move(const Collective& mine);
  void AllReduce(const Collective& mine);
  void Copy(const SegmentList& from, const SegmentList& to, int64_t begin,
            int64_t count, DType dtype);
  /// Reduces `count` elements, from `begin` on, of the members' lists.
  void Reduce(int64_t begin, int64_t count);
  /// Waits until all members have come to `point` of the collective, or lets
  /// the queue wait until their queues have.
  void Join(Event Slot::*point);
  void AwaitPeers(Event Slot::*point);

  const std::shared_ptr<LocalGroup> group_;
  const int me_;
  const KernelTable& kernels_;
};

absl::Status MemoryPlane::Issue(const Collective& collective, int64_t,
                                const Payloads&, Stream&) {
  if (slot().queue != nullptr) {
    AwaitPeers(&Slot::before);
  } else if (collective.kind == CollectiveKind::kBarrier) {
    return absl::OkStatus();
  }
  slot().in_flight.Enter(*slot().fingerprint);
  Move(collective);
  Join(&Slot::after);
  slot().in_flight.Leave();
  return absl::OkStatus();
}

void MemoryPlane::Join(Event Slot::*point) {
  if (slot().queue != nullptr) slot().*point = slot().queue->Record();
  slot().in_flight.Step();
  group_->barrier.ArriveAndWait();
  slot().in_flight.Step();
  // A slot is not written again before all have come to the next collective,
  // and so have read it.
  if (slot().queue != nullptr) AwaitPeers(point);
}

void MemoryPlane::AwaitPeers(Event Slot::*point) {
  for (int i = 1; i < size(); ++i) {
    slot().queue->Wait(group_->slots[(me_ + i) % size()].*point);
  }
}

void MemoryPlane::Copy(const SegmentList& from, const SegmentList& to,
                       int64_t begin, int64_t count, DType dtype) {
  const int64_t elem_bytes = SizeOf(dtype);
  const SegmentCursor source(from, elem_bytes, begin);
  const SegmentCursor target(to, elem_bytes, begin);
  if (slot().queue == nullptr) {
    return CopySegments(source, target, count, elem_bytes);
  }
  slot().queue->Launch([&](KernelContext& on) {
    CopyByKernels(source, target, count, dtype, kernels_, on);
  });
}

void MemoryPlane::Reduce(int64_t begin, int64_t count) {
  const Collective& mine = of(me_);
  const int64_t elem_bytes = SizeOf(mine.dtype);
  absl::InlinedVector<SegmentCursor, 8> sources;
  for (int r = 0; r < size(); ++r) {
    const Route route = RouteOf(mine.kind, mine.root, r, me_);
    sources.emplace_back(of(r).send[route.send], elem_bytes, begin);
  }
  const SegmentCursor to(mine.recv[0], elem_bytes, begin);
  const auto reduce = [&](KernelContext& on) {
    ReduceSegments(mine, absl::MakeSpan(sources), to, count, kernels_, on);
  };
  if (slot().queue != nullptr) return slot().queue->Launch(reduce);
  // No pool: the ranks already use all cores, and compute streams use the
  // pools.
  KernelContext context;
  reduce(context);
}

void MemoryPlane::Move(const Collective& mine) {
  if (mine.kind == CollectiveKind::kAllReduce) return AllReduce(mine);
  if (mine.kind == CollectiveKind::kReduceScatter) {
    return Reduce(0, NumElements(mine.recv[0]));
  }
  // Each rank starts with itself, so that ranks do not all read from one peer.
  for (int i = 0; i < size(); ++i) {
    const int r = (me_ + i) % size();
    const Route route = RouteOf(mine.kind, mine.root, r, me_);
    // A root may have no recv list.
    if (!route.exists() || mine.recv.empty()) continue;
    const SegmentList& to = mine.recv[route.recv];
    Copy(of(r).send[route.send], to, 0, NumElements(to), mine.dtype);
  }
}

void MemoryPlane::AllReduce(const Collective& mine) {
  // In place works: this rank alone reads piece `me_` of each buffer, and
  // writes only that piece of its own until all have finished reading.
  const int n = size();
  const int64_t count = NumElements(mine.recv[0]);
  const auto begin = [&](int r) { return PieceBegin(count, n, r); };
  Reduce(begin(me_), begin(me_ + 1) - begin(me_));
  if (n == 1) return;
  Join(&Slot::summed);
  for (int i = 1; i < n; ++i) {
    const int r = (me_ + i) % n;
    Copy(of(r).recv[0], mine.recv[0], begin(r), begin(r + 1) - begin(r),
         mine.dtype);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlGroup>> LocalControlPlane::Join(
    const GroupKey& key, int member, absl::Duration timeout) {
  return std::make_unique<LocalControlGroup>(hub_, context_, key, member,
                                             timeout);
}

absl::StatusOr<std::unique_ptr<DataPlane>> MemoryPlanes::Connect(
    const GroupKey& key, int member, RankContext& context,
    absl::Duration timeout, Exchange) {
  return MakeMemoryPlane(hub_->Group(key, timeout), member, context.kernels());
}

std::unique_ptr<DataPlane> MakeMemoryPlane(std::shared_ptr<LocalGroup> group,
                                           int member,
                                           const KernelTable& kernels) {
  return std::make_unique<MemoryPlane>(std::move(group), member, kernels);
}

}  // namespace crosshatch::internal
