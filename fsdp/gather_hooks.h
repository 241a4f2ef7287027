// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_GATHER_HOOKS_H_
#define CROSSHATCH_FSDP_GATHER_HOOKS_H_

/// \file
/// GatherHooks: what FSDP all-gathers instead of a parameter's shards, and how
/// the parameter is made of it. PyTorch's counterparts are the methods
/// fsdp_pre_all_gather and fsdp_post_all_gather of a tensor subclass.

#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/shape.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::fsdp {

/// The hooks of one parameter, for FullyShardOptions::gather_hooks. Shards,
/// gradients, optimizer and checkpoints do not change.
class GatherHooks {
 public:
  /// A tensor that is gathered.
  struct Input {
    DType dtype = kFloat32;
    Shape shape;
  };

  virtual ~GatherHooks() = default;

  /// Returns the tensors of a piece of the parameter. Those of the pieces on
  /// all ranks, one after the other along the sharded dim, are the tensors of
  /// the whole: only the size of that dim may depend on the piece. FSDP calls
  /// it for local shapes, of pieces of any size.
  virtual std::vector<Input> Inputs(ShapeView piece) const = 0;

  /// Notes that shards may have changed. Called where an outermost forward
  /// begins and before an explicit ShardedModule::Unshard: all ranks call it at
  /// the same places, whichever of their shards have changed.
  virtual void BeginForward() const {}

  /// Prepares PreAllGather, for example by a reduction over ranks. Called
  /// before each all-gather of shards, on the compute stream. The all-gather
  /// stream waits for shards that changed, and for nothing else: work that is
  /// issued here records an event for PreAllGather to wait for.
  virtual void Prepare() const {}

  /// Writes the tensors of `shard`, this rank's local piece. Called in NoGrad
  /// on the all-gather stream, unless the piece is empty.
  virtual void PreAllGather(const Tensor& shard, TensorSpan inputs) const = 0;

  /// Returns whether PostAllGather makes the parameter. If not, forward
  /// computes with the first gathered tensor, which has the parameter's shape
  /// and a floating dtype or float8, without a copy.
  virtual bool has_post_all_gather() const { return false; }

  /// Writes the parameter to `unsharded`, which has the dtype that
  /// MixedPrecisionPolicy gives it. Called in NoGrad on the compute stream.
  virtual void PostAllGather(TensorSpan /*gathered*/,
                             const Tensor& /*unsharded*/) const {
    CH_CHECK(false) << "GatherHooks::PostAllGather is not overridden";
  }

  /// Returns the tensors for Parameter::gathered_extras. Called once, with
  /// views of the memory that is gathered to; both keep their addresses only
  /// while the parameters are gathered. Empty with PostAllGather.
  virtual TensorList Extras(TensorSpan /*gathered*/) const { return {}; }
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_GATHER_HOOKS_H_
