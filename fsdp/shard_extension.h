// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_SHARD_EXTENSION_H_
#define CROSSHATCH_FSDP_SHARD_EXTENSION_H_

/// \file
/// ShardExtension: how FSDP shards a parameter that something else has already
/// distributed over ranks. FSDP itself works on the local memory and on the
/// layouts that an extension returns. default_extensions.h has the built-in
/// ones; a program's own goes to FullyShardOptions::extension.

#include <memory>

#include "absl/status/statusor.h"
#include "crosshatch/dtensor/layout.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::fsdp {

/// Where and how a sharded parameter lies: a mesh that has the FSDP axes among
/// its own, and a layout on it.
struct ShardedForm {
  DeviceMesh mesh;
  Layout layout;
};

/// A tensor seen from FSDP: the local memory that is sharded and gathered, and
/// how to get from it back to the tensor that forward computes with.
class ForwardForm {
 public:
  virtual ~ForwardForm() = default;
  /// The tensor of the original kind over `local`, which has the local shape of
  /// the original and any dtype. Used for unsharded parameters and for the
  /// destinations of their gradients. No graph, no copy.
  virtual Tensor Wrap(Tensor local) const = 0;
};

/// \threadsafety stateless: one object serves many ranks.
class ShardExtension {
 public:
  virtual ~ShardExtension() = default;

  /// The local memory of `parameter` (as it is before FSDP shards it). A plain
  /// tensor gives itself.
  virtual Tensor LocalOf(const Tensor& parameter) const = 0;

  /// Remembers what `parameter` is, for Wrap.
  virtual std::shared_ptr<const ForwardForm> FormOf(
      const Tensor& parameter) const = 0;

  /// How `parameter` lies when the last axis of `fsdp_mesh` shards its dim
  /// `dim` beneath what shards it already, and the axis before (HSDP) and all
  /// others of the job replicate it.
  /// \error kFailedPrecondition if the meshes have no common root.
  virtual absl::StatusOr<ShardedForm> Chunk(const Tensor& parameter,
                                            const DeviceMesh& fsdp_mesh,
                                            int dim) const = 0;
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_SHARD_EXTENSION_H_
