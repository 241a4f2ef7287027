// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_CUSTOM_COMM_H_
#define CROSSHATCH_FSDP_CUSTOM_COMM_H_

/// \file
/// CustomComm: a program's own way to communicate a group's parameters and
/// gradients.

#include <functional>

#include "absl/status/status.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/nn/parameter.h"
#include "crosshatch/tensor/stream.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::fsdp {

/// What is not set is done as ever. All ranks of the group set the same.
struct CustomComm {
  /// In the place of communicator.Issue(collective, stream): moves the same
  /// data, in the order of that stream, or of another that it then makes
  /// `stream` wait for. Memory is leased until what `stream` has been issued
  /// by the return is done. An error poisons the rank and aborts the
  /// communicator's group: it comes out where a result would, on every rank,
  /// and names the group of parameters.
  using Issue = std::function<absl::Status(
      Communicator& communicator, Collective collective, Stream& stream)>;
  Issue all_gather = nullptr;
  Issue reduce_scatter = nullptr;

  /// Called with the reduced gradients of this rank's shards, a flat tensor of
  /// the reduce dtype, after reduce-scatter and all-reduce and before they are
  /// converted or added up. What it does to them it issues to the
  /// current stream: a further reduction, over ranks that no mesh here knows.
  std::function<void(const Tensor& reduced)> all_reduce_hook = nullptr;
  /// The current stream of the hook. Null: that of the last reduction.
  /// Outlives the groups.
  Stream* hook_stream = nullptr;

  /// Called in backward with each parameter whose gradient has been reduced, or
  /// added to: parameter.grad() is its shard, as the optimizer will see it. The
  /// current stream is the one that has written it, so what is issued comes
  /// after; it may read, change or drop the gradient and update the parameter
  /// (an optimizer's step within backward, after which no gradient is kept).
  /// Compute comes after it at the end of backward. An update is for the last
  /// backward of a step alone.
  std::function<void(nn::Parameter& parameter)> gradient_ready = nullptr;
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_CUSTOM_COMM_H_
