// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_COMM_CONTEXT_H_
#define CROSSHATCH_FSDP_COMM_CONTEXT_H_

/// \file
/// CommContext: state shared by all groups of a tree: the streams of their
/// collectives and the gradient buffers that are being reduced.

#include <deque>

#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch::fsdp {

/// Names of streams. Communicators are created per stream name.
inline constexpr char kComputeStream[] = "compute";
inline constexpr char kAllGatherStream[] = "fsdp_all_gather";
inline constexpr char kReduceScatterStream[] = "fsdp_reduce_scatter";
inline constexpr char kAllReduceStream[] = "fsdp_all_reduce";
/// Streams of copies to and from shards in host memory.
inline constexpr char kToDeviceStream[] = "fsdp_to_device";
inline constexpr char kToHostStream[] = "fsdp_to_host";

/// Streams and gradient buffers of one or more trees, on one rank.
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
  /// HSDP: the stream of the sums over replicas.
  Stream& all_reduce() { return all_reduce_; }

  /// Copy streams for offloaded shards, created on first use.
  Stream& to_device() { return context_.SideStream(kToDeviceStream); }
  Stream& to_host() { return context_.SideStream(kToHostStream); }

  /// Sets ReductionOptions::buffers.
  void set_reduce_buffers(int buffers) { reduce_buffers_ = buffers; }

  /// Keeps a buffer of unsharded gradients, which a reduction reads, until
  /// `reduce_buffers` further reductions have been issued. If it were freed at
  /// once, the next lease on the compute stream would wait for this reduction,
  /// and nothing would overlap.
  void HoldUntilNextReduction(Block gradients) {
    in_flight_.push_back(std::move(gradients));
    while (in_flight_.size() > static_cast<size_t>(reduce_buffers_)) {
      in_flight_.pop_front();
    }
  }
  /// Frees the kept buffers. Called at the end of backward.
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
