// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_CUSTOM_COMM_H_
#define CROSSHATCH_FSDP_CUSTOM_COMM_H_

/// \file
/// CustomComm: replaces the communication of a group's parameters and gradients
/// by a program's own.

#include <functional>

#include "absl/status/status.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/nn/parameter.h"
#include "crosshatch/tensor/stream.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::fsdp {

/// Collectives and callbacks of a program. Members that are null keep the
/// built-in behaviour. All ranks of a group must set the same ones.
struct CustomComm {
  /// Replaces communicator.Issue(collective, stream). Must move the same data,
  /// in the order of `stream` or of another stream that it makes `stream` wait
  /// for. The memory is leased until the work issued to `stream` before the
  /// return has completed. An error poisons the rank and aborts the
  /// communicator's group: every rank gets it where a result would be returned,
  /// with the group's name.
  using Issue = std::function<absl::Status(
      Communicator& communicator, Collective collective, Stream& stream)>;
  Issue all_gather = nullptr;
  Issue reduce_scatter = nullptr;

  /// Receives the reduced gradients of this rank's shards: a flat tensor of the
  /// reduce dtype, after reduce-scatter and all-reduce, before it is converted
  /// or accumulated. May change it by work on the current stream, e.g. reduce
  /// over further ranks that are on no mesh here.
  std::function<void(const Tensor& reduced)> all_reduce_hook = nullptr;
  /// The hook's current stream. Null: that of the last reduction. Must outlive
  /// the groups.
  Stream* hook_stream = nullptr;

  /// Called in backward for each parameter whose gradient was reduced or added
  /// to: parameter.grad() is its shard, as the optimizer will see it. Work
  /// issued to the current stream runs after the gradient is written. The
  /// callback may read, change or drop the gradient and update the parameter,
  /// e.g. as an optimizer step within backward that keeps no gradient. At the
  /// end of backward compute waits for it. Only the last backward of a step may
  /// update parameters.
  std::function<void(nn::Parameter& parameter)> gradient_ready = nullptr;
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_CUSTOM_COMM_H_
