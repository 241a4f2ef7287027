// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/communicator.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/base/event_sink.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

/// One segment of contiguous memory.
SegmentList Contiguous(const void* data, int64_t count) {
  // Engines write to recv lists only.
  return {Segment{.data = const_cast<void*>(data), .run_elems = count}};
}

SegmentList Piece(const void* data, int64_t index, int64_t count, DType dtype) {
  const char* begin = static_cast<const char*>(data);
  if (begin != nullptr) begin += index * count * SizeOf(dtype);
  return Contiguous(begin, count);
}

bool IsReduction(CollectiveKind kind) {
  return kind == CollectiveKind::kReduceScatter ||
         kind == CollectiveKind::kAllReduce;
}

/// Checks one collective as one rank sees it.
class Checker {
 public:
  Checker(const Communicator& comm, const Collective& collective, bool is_meta)
      : comm_(comm), collective_(collective), is_meta_(is_meta) {}

  absl::Status Check() const {
    CH_RETURN_IF_ERROR(CheckLists());
    if (IsReduction(collective_.kind)) CH_RETURN_IF_ERROR(CheckReduction());
    const size_t n = comm_.size();
    const int me = comm_.rank();
    const auto& send = collective_.send;
    const auto& recv = collective_.recv;
    switch (collective_.kind) {
      case CollectiveKind::kAllGather:
        CH_RETURN_IF_ERROR(CheckNumLists(1, n));
        return CheckEqual("send[0]", send[0], "its own recv", recv[me]);
      case CollectiveKind::kReduceScatter:
        CH_RETURN_IF_ERROR(CheckNumLists(n, 1));
        return CheckEqual("its own send", send[me], "recv[0]", recv[0]);
      case CollectiveKind::kAllReduce:
        CH_RETURN_IF_ERROR(CheckNumLists(1, 1));
        return CheckEqual("send[0]", send[0], "recv[0]", recv[0]);
      case CollectiveKind::kAllToAll:
        CH_RETURN_IF_ERROR(CheckNumLists(n, n));
        return CheckEqual("its own send", send[me], "its own recv", recv[me]);
      case CollectiveKind::kBroadcast:
        return CheckBroadcast();
      case CollectiveKind::kBarrier:
        return CheckNumLists(0, 0);
    }
    return Error("has no such kind");
  }

 private:
  template <typename... Parts>
  absl::Status Error(const Parts&... parts) const {
    return absl::InvalidArgumentError(
        absl::StrCat(Name(collective_.kind), " '", collective_.label, "' in ",
                     comm_.Describe(), ", rank ",
                     comm_.world_ranks()[comm_.rank()], ": ", parts...));
  }

  absl::Status CheckLists() const {
    for (const auto* lists : {&collective_.send, &collective_.recv}) {
      for (const SegmentList& list : *lists) {
        for (const Segment& segment : list) {
          CH_RETURN_IF_ERROR(CheckSegment(segment));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckSegment(const Segment& s) const {
    if (s.run_elems < 0 || s.runs < 0) {
      return Error("a segment of ", s.runs, " runs of ", s.run_elems,
                   " elements");
    }
    if (s.runs > 1 && s.stride_elems < s.run_elems) {
      return Error("runs of ", s.run_elems, " elements overlap at a stride of ",
                   s.stride_elems);
    }
    if (s.data == nullptr && s.elems() > 0 && !is_meta_) {
      return Error("a segment of ", s.elems(), " elements has no memory");
    }
    return absl::OkStatus();
  }

  absl::Status CheckReduction() const {
    const DType dtype = collective_.dtype;
    if (dtype == DType::kBool) return Error("reductions of bool do not exist");
    if (IsFloatingPoint(dtype)) return absl::OkStatus();
    if (collective_.reduce_op == ReduceOp::kAvg || collective_.scale != 1.0) {
      return Error("averages and scales need floating point, not ",
                   Name(dtype));
    }
    return absl::OkStatus();
  }

  absl::Status CheckBroadcast() const {
    const int root = collective_.root;
    if (root < 0 || root >= comm_.size()) {
      return Error("root ", root, " is no member of a group of ", comm_.size());
    }
    const size_t sends = collective_.send.size();
    const size_t recvs = collective_.recv.size();
    if (comm_.rank() != root) {
      if (sends <= 1 && recvs == 1) return absl::OkStatus();
      return Error("has ", sends, " send and ", recvs,
                   " recv lists; one that is not the root takes one recv list");
    }
    if (sends != 1 || recvs > 1) {
      return Error("has ", sends, " send and ", recvs,
                   " recv lists; the root takes one send list");
    }
    if (recvs == 0 || NumElements(collective_.recv[0]) == 0) {
      return absl::OkStatus();
    }
    return CheckEqual("send[0]", collective_.send[0], "recv[0]",
                      collective_.recv[0]);
  }

  absl::Status CheckNumLists(size_t send, size_t recv) const {
    if (collective_.send.size() == send && collective_.recv.size() == recv) {
      return absl::OkStatus();
    }
    return Error("has ", collective_.send.size(), " send and ",
                 collective_.recv.size(), " recv lists instead of ", send,
                 " and ", recv);
  }

  absl::Status CheckEqual(const char* a_name, const SegmentList& a,
                          const char* b_name, const SegmentList& b) const {
    if (NumElements(a) == NumElements(b)) return absl::OkStatus();
    return Error(a_name, " has ", NumElements(a), " elements and ", b_name, " ",
                 NumElements(b));
  }

  const Communicator& comm_;
  const Collective& collective_;
  const bool is_meta_;
};

/// See CommunicatorStats.
int64_t BytesReceived(const Collective& c, int me, int n) {
  int64_t elems = 0;
  switch (c.kind) {
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllToAll:
      for (int r = 0; r < n; ++r) {
        if (r != me) elems += NumElements(c.recv[r]);
      }
      break;
    case CollectiveKind::kReduceScatter:
      elems = (n - 1) * NumElements(c.recv[0]);
      break;
    case CollectiveKind::kAllReduce: {
      const int64_t count = NumElements(c.recv[0]);
      const int64_t piece =
          PieceBegin(count, n, me + 1) - PieceBegin(count, n, me);
      elems = (n - 1) * piece + count - piece;
      break;
    }
    case CollectiveKind::kBroadcast:
      if (me != c.root) elems = NumElements(c.recv[0]);
      break;
    case CollectiveKind::kBarrier:
      break;
  }
  return elems * SizeOf(c.dtype);
}

}  // namespace

int64_t NumElements(absl::Span<const Segment> segments) {
  int64_t count = 0;
  for (const Segment& segment : segments) count += segment.elems();
  return count;
}

const char* Name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kAllToAll:
      return "all_to_all";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kBarrier:
      return "barrier";
  }
  return "unknown";
}

Communicator::Communicator(std::string name, int rank,
                           std::vector<int> world_ranks)
    : name_(std::move(name)),
      rank_(rank),
      world_ranks_(std::move(world_ranks)) {}

std::string Communicator::Describe() const {
  return absl::StrCat("group '", name_, "' (ranks ",
                      absl::StrJoin(world_ranks_, ", "), ")");
}

absl::Status Communicator::Issue(Collective collective, Stream& stream) {
  RankContext& context = RankContext::Current();
  if (context.poisoned()) {
    Abort(context.status());
    return absl::OkStatus();
  }
  CH_RETURN_IF_ERROR(
      Checker(*this, collective, context.device().is_meta()).Check());
  const int64_t bytes = BytesReceived(collective, rank_, size());
  CommunicatorStats::Count& count =
      stats_.by_kind[static_cast<int>(collective.kind)];
  ++count.calls;
  count.bytes += bytes;
  if (EventSink* sink = context.sink(); sink != nullptr) {
    sink->Write({.kind = EventKind::kCollective,
                 .what = Name(collective.kind),
                 .subject = &collective.label,
                 .where = &name_,
                 .bytes = bytes});
  }
  IssueChecked(std::move(collective), next_sequence_++, stream);
  return absl::OkStatus();
}

absl::Status AllGather(Communicator& comm, const void* send, void* recv,
                       int64_t count, DType dtype, Stream& stream,
                       std::string label) {
  Collective c{.kind = CollectiveKind::kAllGather,
               .dtype = dtype,
               .label = std::move(label)};
  c.send = {Contiguous(send, count)};
  for (int r = 0; r < comm.size(); ++r) {
    c.recv.push_back(Piece(recv, r, count, dtype));
  }
  return comm.Issue(std::move(c), stream);
}

absl::Status ReduceScatter(Communicator& comm, const void* send, void* recv,
                           int64_t count, DType dtype, ReduceOp op,
                           Stream& stream, std::string label) {
  Collective c{.kind = CollectiveKind::kReduceScatter,
               .dtype = dtype,
               .reduce_op = op,
               .label = std::move(label)};
  for (int r = 0; r < comm.size(); ++r) {
    c.send.push_back(Piece(send, r, count, dtype));
  }
  c.recv = {Contiguous(recv, count)};
  return comm.Issue(std::move(c), stream);
}

absl::Status AllReduce(Communicator& comm, void* data, int64_t count,
                       DType dtype, ReduceOp op, Stream& stream,
                       std::string label) {
  Collective c{.kind = CollectiveKind::kAllReduce,
               .dtype = dtype,
               .reduce_op = op,
               .label = std::move(label)};
  c.send = {Contiguous(data, count)};
  c.recv = {Contiguous(data, count)};
  return comm.Issue(std::move(c), stream);
}

absl::Status Broadcast(Communicator& comm, void* data, int64_t count,
                       DType dtype, int root, Stream& stream,
                       std::string label) {
  Collective c{.kind = CollectiveKind::kBroadcast,
               .dtype = dtype,
               .root = root,
               .label = std::move(label)};
  if (comm.rank() == root) {
    c.send = {Contiguous(data, count)};
  } else {
    c.recv = {Contiguous(data, count)};
  }
  return comm.Issue(std::move(c), stream);
}

absl::Status Barrier(Communicator& comm, Stream& stream, std::string label) {
  return comm.Issue(
      {.kind = CollectiveKind::kBarrier, .label = std::move(label)}, stream);
}

}  // namespace crosshatch
