// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXTENSIONS_DTENSOR_EXTENSIONS_H_
#define CROSSHATCH_EXTENSIONS_DTENSOR_EXTENSIONS_H_

/// \file
/// DTensorExtensions: shards parameters with FSDP within their tensor-parallel
/// shards. FullyShard uses these rules by default for a call with such a
/// parameter. To apply them to a call of plain parameters too, set
/// FullyShardOptions::extension to this class. Derive from it to change a
/// method.
///
/// It is named after PyTorch's class, whose hooks correspond to
///
///     pre_flatten_transform          LocalOf and FormOf
///     post_unflatten_transform       ForwardForm::Wrap
///     chunk_tensor, chunk_dtensor    Chunk
///     all_gather_dtensor             FullTensor, or Redistribute to the layout
///                                    without the FSDP axes
///     pre_load_state_dict_transform  LocalTensor, WritableLocalTensor: the
///                                    memory that a loader fills
///     _get_box and its like          LocalBoxOf: the box that a loader reads
///
/// The last three are functions of DTensors (dtensor/dtensor.h): a sharded
/// parameter is a DTensor of its whole layout, so states and checkpoints use
/// its box and its local tensor and need no hooks.
///
/// Unlike in PyTorch, sizes need not be divisible and the global shape is never
/// inferred from a local one. If both axes split a dim, tp splits it first and
/// fsdp splits tp's shards. The layout records that order.

#include <memory>

#include "absl/status/statusor.h"
#include "crosshatch/fsdp/shard_extension.h"

namespace crosshatch {

/// The default extension for distributed parameters.
class DTensorExtensions : public fsdp::ShardExtension {
 public:
  static std::shared_ptr<const DTensorExtensions> Create();

  /// Returns the local tensor of a DTensor; for a plain tensor, the tensor
  /// itself.
  Tensor LocalOf(const Tensor& parameter) const override;

  std::shared_ptr<const fsdp::ForwardForm> FormOf(
      const Tensor& parameter) const override;

  /// Returns a layout on a mesh derived from the root of `fsdp_mesh`. Axes of
  /// `fsdp_mesh` and of the parameter's mesh may be several axes of the root
  /// flattened (DeviceMesh::Flatten) or all parts of one
  /// (DeviceMesh::Unflatten). The layout's mesh then has them flattened or
  /// split too. On a mesh (fsdp, tp) the result is
  ///
  ///   plain tensor         [S(dim), R]
  ///   DTensor S(0) on tp   [_S(0,tp), S(0)] for dim 0, [S(1), S(0)] for dim 1
  ///
  /// and with an HSDP axis in front one more R. If tp keeps units (heads)
  /// together, fsdp splits their elements.
  ///
  /// Along all other axes of the root, plain tensors count as copies of one, so
  /// different experts must not be plain: make each a Replicate DTensor on tp.
  /// A DTensor's layout has the axes of both meshes
  /// only, and ranks along other axes may hold another tensor (another expert).
  /// \error kFailedPrecondition if a DTensor's mesh has another root, if the
  ///     tensor is already distributed over an axis of `fsdp_mesh`, or if an
  ///     axis is a part of a root axis whose other parts are missing.
  /// \error kInvalidArgument if the DTensor is Partial.
  absl::StatusOr<fsdp::ShardedForm> Chunk(const Tensor& parameter,
                                          const DeviceMesh& fsdp_mesh,
                                          int dim) const override;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_EXTENSIONS_DTENSOR_EXTENSIONS_H_
