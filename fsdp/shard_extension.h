// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_SHARD_EXTENSION_H_
#define CROSSHATCH_FSDP_SHARD_EXTENSION_H_

/// \file
/// ShardExtension: how FSDP shards a parameter that is already distributed over
/// ranks. FSDP itself works on local memory and on the layouts that an
/// extension returns. default_extensions.h declares the built-in extensions;
/// FullyShardOptions::extension takes a program's own.

#include <memory>

#include "absl/status/statusor.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::fsdp {

/// The layout of a sharded parameter, and its mesh, which includes the FSDP
/// axes.
struct ShardedForm {
  DeviceMesh mesh;
  Layout layout;
};

/// Converts the local memory that FSDP gathers back to the kind of tensor that
/// forward computes with.
class ForwardForm {
 public:
  virtual ~ForwardForm() = default;
  /// Returns a tensor of the parameter's original kind over `local`, without a
  /// copy or an autograd graph. Used for unsharded parameters and for the
  /// tensors that receive their gradients.
  /// \param local has the local shape of the original and any dtype.
  virtual Tensor Wrap(Tensor local) const = 0;
};

/// Maps parameters to the local tensors that FSDP shards, and to their layouts.
/// \threadsafety Stateless: one object serves many ranks.
class ShardExtension {
 public:
  virtual ~ShardExtension() = default;

  /// Returns the local tensor of `parameter` before FSDP shards it. For a plain
  /// tensor, returns the tensor itself.
  virtual Tensor LocalOf(const Tensor& parameter) const = 0;

  /// Returns the conversion from an unsharded local tensor to the kind of
  /// `parameter`.
  virtual std::shared_ptr<const ForwardForm> FormOf(
      const Tensor& parameter) const = 0;

  /// Returns the mesh and layout that result if the last axis of `fsdp_mesh`
  /// shards dim `dim` within the existing shards of `parameter`. The replicate
  /// axis (HSDP) and all other axes of the root mesh replicate it.
  /// \error kFailedPrecondition if the meshes have no common root.
  virtual absl::StatusOr<ShardedForm> Chunk(const Tensor& parameter,
                                            const DeviceMesh& fsdp_mesh,
                                            int dim) const = 0;
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_SHARD_EXTENSION_H_
