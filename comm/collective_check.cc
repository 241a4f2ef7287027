// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/collective_check.h"

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"

namespace crosshatch {
namespace {

/// Per segment, so that neither the sum nor the bytes of a list overflow.
constexpr int64_t kMaxElements = int64_t{1} << 48;

class Checker {
 public:
  Checker(const Collective& collective, const GroupKey& key, int member,
          bool is_meta)
      : collective_(collective),
        key_(key),
        member_(member),
        is_meta_(is_meta) {}

  absl::Status Check() const {
    CH_RETURN_IF_ERROR(CheckLists());
    if (IsReduction(collective_.kind)) CH_RETURN_IF_ERROR(CheckReduction());
    const size_t n = key_.size();
    const int me = member_;
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
    return absl::InvalidArgumentError(absl::StrCat(
        Name(collective_.kind), " '", collective_.label, "' in ",
        Describe(key_), ", rank ", key_.world_ranks[member_], ": ", parts...));
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
    int64_t elems = 0;
    if (__builtin_mul_overflow(s.run_elems, s.runs, &elems) ||
        elems > kMaxElements) {
      return Error("a segment of ", s.runs, " runs of ", s.run_elems,
                   " elements is larger than any memory");
    }
    if (s.runs > 1 && s.stride_elems < s.run_elems) {
      return Error("runs of ", s.run_elems, " elements overlap at a stride of ",
                   s.stride_elems);
    }
    if (s.data == nullptr && elems > 0 && !is_meta_) {
      return Error("a segment of ", elems, " elements has no memory");
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
    if (root < 0 || root >= key_.size()) {
      return Error("root ", root, " is no member of a group of ", key_.size());
    }
    const size_t sends = collective_.send.size();
    const size_t recvs = collective_.recv.size();
    if (member_ != root) {
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

  const Collective& collective_;
  const GroupKey& key_;
  const int member_;
  const bool is_meta_;
};

}  // namespace

absl::Status CheckCollective(const Collective& collective, const GroupKey& key,
                             int member, bool is_meta) {
  return Checker(collective, key, member, is_meta).Check();
}

}  // namespace crosshatch
