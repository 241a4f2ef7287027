// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/kernel_copy.h"
#include "crosshatch/comm/nccl/nccl_data_plane.h"
#include "crosshatch/comm/nccl/nccl_plan.h"
#include "crosshatch/comm/reduce_segments.h"
#include "crosshatch/comm/route.h"
#include "crosshatch/tensor/allocator.h"
#include "crosshatch/tensor/device.h"
#include "crosshatch/tensor/kernels/cuda/cuda_api.cuh"
#include "crosshatch/tensor/step_capture.h"

namespace crosshatch::internal {
namespace {

/// The lengths of the messages that carry a part, equal on both sides.
using Runs = absl::Span<const int64_t>;

/// One message: a contiguous run of memory.
struct Message {
  std::byte* data = nullptr;
  int64_t elems = 0;
};

/// Returns whether a part can be sent in place, and sets its messages. Each run
/// must be contiguous memory of the device.
bool AreMessages(const Part& part, Runs runs, int64_t elem_bytes,
                 NcclComm& comm, std::vector<Message>& messages) {
  SegmentCursor cursor(part.list, elem_bytes, part.begin);
  for (const int64_t run : runs) {
    if (run == 0) continue;
    if (cursor.contiguous() < run || !comm.IsOfDevice(cursor.data())) {
      return false;
    }
    messages.push_back({cursor.data(), run});
    cursor.Advance(run);
  }
  return true;
}

class NcclDataPlane final : public DataPlane, private MemoryListener {
 public:
  /// \param comm null for a group of one
  NcclDataPlane(const GroupKey& key, int member, RankContext& context,
                const NcclOptions& options, std::unique_ptr<NcclComm> comm)
      : size_(key.size()),
        me_(member),
        device_(context.device().index()),
        context_(context),
        options_(options),
        comm_(std::move(comm)) {
    if (comm_ == nullptr) return;
    context_.device_allocator().AddListener(*this);
    is_memory_listener_ = true;
  }
  ~NcclDataPlane() override { LeaveMemory(); }

  /// Offers a hash of how this member's lists are split into runs. If it is
  /// equal and not 0 on all members, they exchange the runs in place.
  void Offer(const Collective& collective, PayloadRoom room) override {
    cuts_ = CutsOf(collective);
    for (int r = 0; r < size_; ++r) {
      if (r == me_) continue;
      std::memcpy(room(r, sizeof(cuts_.hash)), &cuts_.hash, sizeof(cuts_.hash));
    }
  }
  absl::Status Issue(const Collective& collective, int64_t sequence,
                     const Payloads& payloads, Stream& queue) override;
  absl::Status Poll() override {
    if (comm_ == nullptr) return absl::OkStatus();
    // The watchdog's thread would otherwise initialize device 0.
    CheckCuda(cudaSetDevice(device_), "cudaSetDevice");
    return comm_->Poll();
  }
  std::string Recent() override {
    if (comm_ == nullptr) return "";
    CheckCuda(cudaSetDevice(device_), "cudaSetDevice");
    return comm_->Recent();
  }
  void LeaveMemory() override {
    if (!std::exchange(is_memory_listener_, false)) return;
    context_.device_allocator().RemoveListener(*this);
    CheckCuda(cudaSetDevice(device_), "cudaSetDevice");
    comm_->LeaveMemory();
  }
  void Abort() override {
    if (comm_ == nullptr) return;
    CheckCuda(cudaSetDevice(device_), "cudaSetDevice");
    comm_->Abort();
  }

 private:
  void MemoryGoes(const std::byte* data) override {
    CheckCuda(cudaSetDevice(device_), "cudaSetDevice");
    comm_->MemoryGoes(data);
  }

  bool HaveSameShape(const Payloads& payloads) const;
  absl::Status Move(const Collective& c, bool same_shape, Stream& queue);
  absl::Status SendAndReceive(const Collective& c, const NcclCuts& cuts,
                              Stream& queue);
  /// All-reduces, broadcasts, or waits for all members.
  absl::Status ByCollective(const Collective& c, Stream& queue);
  /// Gathers or reduce-scatters the parts, in one NCCL group.
  absl::Status ByCollectives(const NcclParts& split, Stream& queue);
  /// Returns contiguous memory of the device that NCCL may use: that of `list`,
  /// or a block that is added to `scratch` and has the content of `list` if
  /// `is_filled`.
  absl::StatusOr<std::byte*> RunOf(const SegmentList& list, DType dtype,
                                   bool is_filled, std::vector<Block>& scratch,
                                   Stream& queue);
  /// Copies a run to the list that RunOf replaced by it. Does nothing if it is
  /// the list itself.
  void CopyBack(std::byte* data, const SegmentList& list, DType dtype,
                Stream& queue) {
    const int64_t elems = NumElements(list);
    const Segment run = {.data = data, .run_elems = elems};
    Copy({{&run, 1}, 0, elems}, {list, 0, elems}, dtype, queue);
  }
  /// Receives the other members' summands and writes the sum, in the order of
  /// ranks, to `to`.
  /// \param summands of this rank, by member
  absl::Status Reduce(const Collective& c, const NcclCuts& cuts,
                      const std::vector<Part>& summands, const Part& to,
                      Stream& queue);

  /// Exchanges parts with all other members. `sends` and `receives` are by
  /// member.
  /// \param cuts of the parts; without runs each part is one message
  absl::Status Swap(const std::vector<Part>& sends,
                    const std::vector<Part>& receives, const Collective& c,
                    const NcclCuts& cuts, Stream& queue);
  void Copy(const Part& from, const Part& to, DType dtype, Stream& queue);
  void Scale(const Collective& c, std::byte* data, int64_t count,
             Stream& queue);
  Block Scratch(int64_t elems, DType dtype, Stream& queue) {
    return context_.device_allocator().Allocate(
        elems * SizeOf(dtype), MemoryClass::kCommunication, queue);
  }
  cudaStream_t Raw(Stream& queue) {
    cudaStream_t raw = nullptr;
    queue.Launch([&](KernelContext& on) { raw = StreamOf(on); });
    return raw;
  }

  const int size_;
  const int me_;
  const int device_;
  NcclCuts cuts_;  ///< Of the latest offer.
  RankContext& context_;
  const NcclOptions options_;
  const std::unique_ptr<NcclComm> comm_;
  /// The number of the latest capture with its collectives; 0 for none.
  uint64_t watched_ = 0;
  /// Whether it listens to the allocator.
  bool is_memory_listener_ = false;
};

absl::Status NcclDataPlane::Issue(const Collective& collective,
                                  int64_t sequence, const Payloads& payloads,
                                  Stream& queue) {
  CH_RETURN_IF_ERROR(Move(collective, HaveSameShape(payloads), queue));
  if (comm_ == nullptr) return absl::OkStatus();
  std::string what = absl::StrCat(Name(collective.kind), " #", sequence, " '",
                                  collective.label, "'");
  StepCapture* const capture = context_.capture();
  if (capture == nullptr) {
    comm_->Issued(std::move(what), queue.Record());
  } else if (std::exchange(watched_, capture->number()) != capture->number()) {
    // The watchdog watches whole launches.
    capture->AfterLaunch(
        [this, what = absl::StrCat("a captured step from ", what, " on")](
            const Event& end) { comm_->Issued(what, end); });
  }
  return absl::OkStatus();
}

bool NcclDataPlane::HaveSameShape(const Payloads& payloads) const {
  for (int r = 0; r < size_; ++r) {
    if (r == me_) continue;
    const absl::string_view other = payloads.Of(r);
    if (other.size() != sizeof(cuts_.hash) ||
        std::memcmp(other.data(), &cuts_.hash, sizeof(cuts_.hash)) != 0) {
      return false;
    }
  }
  return cuts_.hash != 0;
}

absl::Status NcclDataPlane::Move(const Collective& c, bool same_shape,
                                 Stream& queue) {
  const NcclCuts cuts = same_shape ? std::move(cuts_) : NcclCuts{};
  if (comm_ == nullptr ||
      ChooseNcclWay(c, cuts, size_, options_) != NcclWay::kCollective) {
    return SendAndReceive(c, cuts, queue);
  }
  if (cuts.strips.empty()) return ByCollective(c, queue);
  const NcclParts split = SplitOffStrips(c, cuts, me_);
  CH_RETURN_IF_ERROR(ByCollectives(split, queue));
  if (!split.has_rest) return absl::OkStatus();
  return SendAndReceive(split.rest, split.rest_cuts, queue);
}

void NcclDataPlane::Copy(const Part& from, const Part& to, DType dtype,
                         Stream& queue) {
  queue.Launch([&](KernelContext& on) {
    CopyByKernels(SegmentCursor(from.list, SizeOf(dtype), from.begin),
                  SegmentCursor(to.list, SizeOf(dtype), to.begin), to.elems,
                  dtype, context_.kernels(), on);
  });
}

absl::Status NcclDataPlane::Swap(const std::vector<Part>& sends,
                                 const std::vector<Part>& receives,
                                 const Collective& c, const NcclCuts& cuts,
                                 Stream& queue) {
  if (comm_ == nullptr) return absl::OkStatus();
  const int64_t elem_bytes = SizeOf(c.dtype);
  const auto runs_of = [&](const Part& part, int from, int to) {
    if (cuts.runs.empty()) return Runs(&part.elems, 1);
    const bool gathers = c.kind == CollectiveKind::kAllGather;
    return Runs(cuts.runs[static_cast<size_t>(gathers ? from : to)]);
  };
  std::vector<Block> scratch;
  const auto block_of = [&](const Part& part) {
    scratch.push_back(Scratch(part.elems, c.dtype, queue));
    return Segment{.data = scratch.back().data(), .run_elems = part.elems};
  };
  // Packs parts that cannot be sent in place. In an all-gather one part goes to
  // many peers and is packed once.
  std::vector<std::vector<Message>> outgoing(sends.size());
  for (int r = 0; r < size_; ++r) {
    const Part& part = sends[r];
    if (r == me_ || part.elems == 0) continue;
    const int before = r - (r - 1 == me_ ? 2 : 1);
    if (before >= 0 && sends[before].list.data() == part.list.data() &&
        sends[before].begin == part.begin &&
        sends[before].elems == part.elems) {
      outgoing[r] = outgoing[before];
      continue;
    }
    const Runs runs = runs_of(part, me_, r);
    if (AreMessages(part, runs, elem_bytes, *comm_, outgoing[r])) continue;
    const Segment packed = block_of(part);
    const Part again = {{&packed, 1}, 0, part.elems};
    Copy(part, again, c.dtype, queue);
    outgoing[r].clear();
    AreMessages(again, runs, elem_bytes, *comm_, outgoing[r]);
  }
  std::vector<std::vector<Message>> incoming(receives.size());
  std::vector<Segment> unpacked(receives.size());
  for (int r = 0; r < size_; ++r) {
    const Part& part = receives[r];
    if (r == me_ || part.elems == 0) continue;
    const Runs runs = runs_of(part, r, me_);
    if (AreMessages(part, runs, elem_bytes, *comm_, incoming[r])) continue;
    unpacked[r] = block_of(part);
    incoming[r].clear();
    AreMessages({{&unpacked[r], 1}, 0, part.elems}, runs, elem_bytes, *comm_,
                incoming[r]);
  }
  for (const auto* messages : {&outgoing, &incoming}) {
    for (const std::vector<Message>& of_peer : *messages) {
      for (const Message& message : of_peer) {
        CH_RETURN_IF_ERROR(
            comm_->Use(message.data, message.elems * elem_bytes));
      }
    }
  }
  const cudaStream_t raw = Raw(queue);
  CH_RETURN_IF_ERROR(comm_->Group([&](ncclComm_t comm) {
    ncclResult_t result = ncclSuccess;
    const auto keep = [&](ncclResult_t got) {
      if (result == ncclSuccess && got != ncclInProgress) result = got;
    };
    // Each rank starts with the next one, so that not all send to one peer.
    for (int i = 1; i < size_; ++i) {
      const int to = (me_ + i) % size_;
      for (const Message& message : outgoing[static_cast<size_t>(to)]) {
        keep(ncclSend(message.data,
                      static_cast<size_t>(message.elems * elem_bytes),
                      ncclUint8, to, comm, raw));
      }
      const int from = (me_ + size_ - i) % size_;
      for (const Message& message : incoming[static_cast<size_t>(from)]) {
        keep(ncclRecv(message.data,
                      static_cast<size_t>(message.elems * elem_bytes),
                      ncclUint8, from, comm, raw));
      }
    }
    return result;
  }));
  for (size_t r = 0; r < receives.size(); ++r) {
    if (unpacked[r].data == nullptr) continue;
    Copy({{&unpacked[r], 1}, 0, receives[r].elems}, receives[r], c.dtype,
         queue);
  }
  return absl::OkStatus();
}

absl::Status NcclDataPlane::SendAndReceive(const Collective& c,
                                           const NcclCuts& cuts,
                                           Stream& queue) {
  if (c.kind == CollectiveKind::kBarrier) return absl::OkStatus();
  std::vector<Part> sends(static_cast<size_t>(size_));
  std::vector<Part> receives(static_cast<size_t>(size_));
  PlanParts(c, me_, /*in_pieces=*/true, absl::MakeSpan(sends),
            absl::MakeSpan(receives));
  if (!IsReduction(c.kind)) {
    Copy(sends[me_], receives[me_], c.dtype, queue);
    return Swap(sends, receives, c, cuts, queue);
  }
  // Safe in place: a member writes only its own piece, which the others do not
  // read before they receive it.
  CH_RETURN_IF_ERROR(Reduce(c, cuts, sends, receives[me_], queue));
  if (c.kind == CollectiveKind::kReduceScatter) return absl::OkStatus();
  PlanGatherOfPieces(c, me_, absl::MakeSpan(sends), absl::MakeSpan(receives));
  return Swap(sends, receives, c, cuts, queue);
}

absl::Status NcclDataPlane::Reduce(const Collective& c, const NcclCuts& cuts,
                                   const std::vector<Part>& summands,
                                   const Part& to, Stream& queue) {
  const auto n = static_cast<size_t>(size_);
  const int64_t elem_bytes = SizeOf(c.dtype);
  const Block scratch = Scratch(to.elems * (size_ - 1), c.dtype, queue);
  std::vector<Segment> received(n);
  std::vector<Part> receives(n);
  std::vector<SegmentCursor> sources;
  sources.reserve(n);
  std::byte* next = scratch.data();
  for (int r = 0; r < size_; ++r) {
    if (r == me_) {
      sources.emplace_back(summands[r].list, elem_bytes, summands[r].begin);
      continue;
    }
    received[r] = {.data = next, .run_elems = to.elems};
    receives[r] = {{&received[r], 1}, 0, to.elems};
    sources.emplace_back(receives[r].list, elem_bytes);
    next += to.elems * elem_bytes;
  }
  CH_RETURN_IF_ERROR(Swap(summands, receives, c, cuts, queue));
  queue.Launch([&](KernelContext& on) {
    ReduceSegments(c, absl::MakeSpan(sources),
                   SegmentCursor(to.list, elem_bytes, to.begin), to.elems,
                   context_.kernels(), on);
  });
  return absl::OkStatus();
}

void NcclDataPlane::Scale(const Collective& c, std::byte* data, int64_t count,
                          Stream& queue) {
  if (c.scale == 1.0) return;
  const void* const source = data;
  queue.Launch([&](KernelContext& on) {
    context_.kernels().accumulate_ranks({.op = ReduceOp::kSum,
                                         .sources = &source,
                                         .num_sources = 1,
                                         .out = data,
                                         .count = count,
                                         .dtype = c.dtype,
                                         .out_dtype = c.dtype,
                                         .scale = c.scale},
                                        on);
  });
}

absl::StatusOr<std::byte*> NcclDataPlane::RunOf(const SegmentList& list,
                                                DType dtype, bool is_filled,
                                                std::vector<Block>& scratch,
                                                Stream& queue) {
  const int64_t elem_bytes = SizeOf(dtype);
  const int64_t elems = NumElements(list);
  SegmentCursor cursor(list, elem_bytes);
  if (cursor.contiguous() >= elems &&
      (elems == 0 || comm_->IsOfDevice(cursor.data()))) {
    CH_RETURN_IF_ERROR(comm_->Use(cursor.data(), elems * elem_bytes));
    return cursor.data();
  }
  scratch.push_back(Scratch(elems, dtype, queue));
  std::byte* const data = scratch.back().data();
  CH_RETURN_IF_ERROR(comm_->Use(data, elems * elem_bytes));
  if (is_filled) {
    const Segment run = {.data = data, .run_elems = elems};
    Copy({list, 0, elems}, {{&run, 1}, 0, elems}, dtype, queue);
  }
  return data;
}

absl::Status NcclDataPlane::ByCollectives(const NcclParts& split,
                                          Stream& queue) {
  const Collective& c = split.rest;
  const bool gathers = c.kind == CollectiveKind::kAllGather;
  const int64_t elem_bytes = SizeOf(c.dtype);
  const cudaStream_t raw = Raw(queue);
  struct Call {
    std::byte* all;
    std::byte* mine;
    int64_t elems;
  };
  std::vector<Call> calls;
  std::vector<Block> scratch;
  const auto list_of_all = [&](const NcclParts::Part& part) -> SegmentList {
    return {{.data = part.all, .run_elems = part.elems * size_}};
  };
  for (const NcclParts::Part& part : split.parts) {
    CH_ASSIGN_OR_RETURN(std::byte* const all,
                        RunOf(list_of_all(part), c.dtype,
                              /*is_filled=*/!gathers, scratch, queue));
    CH_ASSIGN_OR_RETURN(
        std::byte* const mine,
        RunOf(part.mine, c.dtype, /*is_filled=*/gathers, scratch, queue));
    calls.push_back({all, mine, part.elems});
  }
  CH_RETURN_IF_ERROR(comm_->Group([&](ncclComm_t comm) {
    ncclResult_t result = ncclSuccess;
    for (const Call& call : calls) {
      const ncclResult_t got =
          gathers ? ncclAllGather(call.mine, call.all,
                                  static_cast<size_t>(call.elems * elem_bytes),
                                  ncclUint8, comm, raw)
                  : ncclReduceScatter(
                        call.all, call.mine, static_cast<size_t>(call.elems),
                        NcclTypeOf(c.dtype), NcclOpOf(c.reduce_op), comm, raw);
      if (result == ncclSuccess && got != ncclInProgress) result = got;
    }
    return result;
  }));
  for (size_t i = 0; i < calls.size(); ++i) {
    if (gathers) {
      CopyBack(calls[i].all, list_of_all(split.parts[i]), c.dtype, queue);
      continue;
    }
    // Adjacent results are scaled by one kernel.
    if (i > 0 &&
        calls[i - 1].mine + calls[i - 1].elems * elem_bytes == calls[i].mine) {
      continue;
    }
    int64_t elems = calls[i].elems;
    for (size_t j = i + 1; j < calls.size() &&
                           calls[i].mine + elems * elem_bytes == calls[j].mine;
         ++j) {
      elems += calls[j].elems;
    }
    Scale(c, calls[i].mine, elems, queue);
  }
  if (gathers) return absl::OkStatus();
  for (size_t i = 0; i < calls.size(); ++i) {
    CopyBack(calls[i].mine, split.parts[i].mine, c.dtype, queue);
  }
  return absl::OkStatus();
}

absl::Status NcclDataPlane::ByCollective(const Collective& c, Stream& queue) {
  const int64_t elem_bytes = SizeOf(c.dtype);
  const cudaStream_t raw = Raw(queue);
  std::vector<Block> scratch;
  const auto run_of = [&](const SegmentList& list, bool is_filled) {
    return RunOf(list, c.dtype, is_filled, scratch, queue);
  };
  switch (c.kind) {
    case CollectiveKind::kAllReduce: {
      const int64_t elems = NumElements(c.recv[0]);
      CH_ASSIGN_OR_RETURN(std::byte* const send, run_of(c.send[0], true));
      CH_ASSIGN_OR_RETURN(std::byte* const recv, run_of(c.recv[0], false));
      CH_RETURN_IF_ERROR(comm_->Group([&](ncclComm_t comm) {
        return ncclAllReduce(send, recv, static_cast<size_t>(elems),
                             NcclTypeOf(c.dtype), NcclOpOf(c.reduce_op), comm,
                             raw);
      }));
      Scale(c, recv, elems, queue);
      CopyBack(recv, c.recv[0], c.dtype, queue);
      return absl::OkStatus();
    }
    case CollectiveKind::kBroadcast: {
      const bool is_root = me_ == c.root;
      const SegmentList& list = is_root ? c.send[0] : c.recv[0];
      const int64_t elems = NumElements(list);
      CH_ASSIGN_OR_RETURN(std::byte* const data, run_of(list, is_root));
      if (elems > 0) {
        CH_RETURN_IF_ERROR(comm_->Group([&](ncclComm_t comm) {
          return ncclBroadcast(data, data,
                               static_cast<size_t>(elems * elem_bytes),
                               ncclUint8, c.root, comm, raw);
        }));
      }
      if (!c.recv.empty()) CopyBack(data, c.recv[0], c.dtype, queue);
      return absl::OkStatus();
    }
    case CollectiveKind::kBarrier: {
      const Block word = Scratch(1, DType::kInt32, queue);
      CH_RETURN_IF_ERROR(comm_->Use(word.data(), SizeOf(DType::kInt32)));
      return comm_->Group([&](ncclComm_t comm) {
        return ncclAllReduce(word.data(), word.data(), 1, ncclInt32, ncclSum,
                             comm, raw);
      });
    }
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll:
      break;
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<DataPlane> MakeNcclDataPlane(const GroupKey& key, int member,
                                             RankContext& context,
                                             const NcclOptions& options,
                                             std::unique_ptr<NcclComm> comm) {
  return std::make_unique<NcclDataPlane>(key, member, context, options,
                                         std::move(comm));
}

}  // namespace crosshatch::internal
