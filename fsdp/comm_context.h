// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_COMM_CONTEXT_H_
#define CROSSHATCH_FSDP_COMM_CONTEXT_H_

/// \file
/// CommContext: what all groups of one tree share: the streams of their
/// collectives and the gradient buffers still being reduced.

#include <deque>

#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch::fsdp {

/// Names of the side streams, which are also what communicators are made for.
inline constexpr char kComputeStream[] = "compute";
inline constexpr char kAllGatherStream[] = "fsdp_all_gather";
inline constexpr char kReduceScatterStream[] = "fsdp_reduce_scatter";
inline constexpr char kAllReduceStream[] = "fsdp_all_reduce";
/// They copy, where shards lie in host memory.
inline constexpr char kToDeviceStream[] = "fsdp_to_device";
inline constexpr char kToHostStream[] = "fsdp_to_host";

class CommContext {
 public:
  explicit CommContext(RankContext& context, int reduce_buffers)
      : context_(context),
        reduce_buffers_(reduce_buffers),
        all_gather_(context.SideStream(kAllGatherStream)),
        reduce_scatter_(context.SideStream(kReduceScatterStream)),
        all_reduce_(context.SideStream(kAllReduceStream)) {}

  RankContext& context() { return context_; }
  Stream& compute() { return context_.compute_stream(); }
  Stream& all_gather() { return all_gather_; }
  Stream& reduce_scatter() { return reduce_scatter_; }
  /// HSDP: of the sums over replicas.
  Stream& all_reduce() { return all_reduce_; }

  /// Made when first asked for.
  Stream& to_device() { return context_.SideStream(kToDeviceStream); }
  Stream& to_host() { return context_.SideStream(kToHostStream); }

  /// ReductionOptions::buffers.
  void set_reduce_buffers(int buffers) { reduce_buffers_ = buffers; }

  /// Takes the lease of unsharded gradients that a reduction reads. It is held
  /// until the next groups' reductions have been issued, as many as
  /// `reduce_buffers`: given back at once, the next lease on the compute stream
  /// would wait for this reduction, and nothing would overlap.
  void HoldUntilNextReduction(Block gradients) {
    in_flight_.push_back(std::move(gradients));
    while (in_flight_.size() > static_cast<size_t>(reduce_buffers_)) {
      in_flight_.pop_front();
    }
  }
  /// At the end of backward.
  void ReleaseHeld() { in_flight_.clear(); }

 private:
  RankContext& context_;
  int reduce_buffers_;
  Stream& all_gather_;
  Stream& reduce_scatter_;
  Stream& all_reduce_;
  std::deque<Block> in_flight_;
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_COMM_CONTEXT_H_
