// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXTENSIONS_DTENSOR_EXTENSIONS_H_
#define CROSSHATCH_EXTENSIONS_DTENSOR_EXTENSIONS_H_

/// \file
/// DTensorExtensions: shards parameters with FSDP beneath tensor parallelism.
/// FullyShard uses these rules by default for a call with such a parameter. Set
/// FullyShardOptions::extension to it to apply them to a call of plain
/// parameters too, or derive from it to change one of its methods.
///
/// Named after PyTorch's class of that name; its hooks are found here as
///
///     pre_flatten_transform          LocalOf and FormOf
///     post_unflatten_transform       ForwardForm::Wrap
///     chunk_tensor, chunk_dtensor    Chunk
///     all_gather_dtensor             FullTensor, or Redistribute to the layout
///                                    without the axes of FSDP
///     pre_load_state_dict_transform  LocalTensor, WritableLocalTensor: what a
///                                    loader fills
///     _get_box and its like          LocalBoxOf: what a loader reads for it
///
/// The last three are functions of DTensors (dtensor/dtensor.h), since a
/// sharded parameter is a DTensor of its full layout throughout: states and
/// checkpoints know it by its box and its local part and need no hook.
///
/// Unlike there, no size need divide, the global shape is never guessed from a
/// local one, and a dim that both split is split by tp first and by fsdp
/// beneath, which the layout says itself.

#include <memory>

#include "absl/status/statusor.h"
#include "crosshatch/fsdp/shard_extension.h"

namespace crosshatch {

class DTensorExtensions : public fsdp::ShardExtension {
 public:
  static std::shared_ptr<const DTensorExtensions> Create();

  /// The local part of a DTensor; a plain tensor itself.
  Tensor LocalOf(const Tensor& parameter) const override;

  std::shared_ptr<const fsdp::ForwardForm> FormOf(
      const Tensor& parameter) const override;

  /// A layout on the root of `fsdp_mesh`. Axes of that and of the parameter's
  /// mesh may be several of the root's joined (DeviceMesh::Flatten), or the
  /// parts of one (DeviceMesh::Unflatten), all of them: then the layout's mesh
  /// has them joined or parted too. On a mesh (fsdp, tp):
  ///   plain tensor         [S(dim), R]
  ///   DTensor S(0) on tp   [_S(0,tp), S(0)] for dim 0, [S(1), S(0)] for dim 1
  /// and with an HSDP axis in front one more R. A plain tensor is taken to be
  /// equal along all other axes of the root (an expert that is not spread would
  /// stand for those of all ranks: replicate it on tp); a DTensor lies on those
  /// of both meshes alone, and along others may be another (of another expert).
  /// Where tp keeps units (heads) together, fsdp splits single elements
  /// beneath.
  /// \error kFailedPrecondition for a DTensor whose mesh has another
  /// root, or
  ///     that is spread over an axis of `fsdp_mesh` already, or an axis that is
  ///     a part of one of the root's and stands without the other parts;
  ///     kInvalidArgument for one with reductions due.
  absl::StatusOr<fsdp::ShardedForm> Chunk(const Tensor& parameter,
                                          const DeviceMesh& fsdp_mesh,
                                          int dim) const override;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_EXTENSIONS_DTENSOR_EXTENSIONS_H_
