// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TP_PARALLEL_STYLE_H_
#define CROSSHATCH_TP_PARALLEL_STYLE_H_

/// \file
/// Styles: how one module is spread over the tensor-parallel axis. A style
/// turns the module's parameters into DTensors and puts hooks around its
/// forward that bring inputs and outputs into the layouts it names; the module
/// itself is written for one device. parallelize_module.h applies styles by
/// name patterns.
///
/// Layouts are of one placement, that of the one axis. Negative dims count from
/// the end. A plain tensor at an input is taken to lie as the style's `input`
/// says, split between units where a Linear's features come in units; what
/// enters as a DTensor is redistributed if need be. Gradients lie as the
/// tensors they belong to, so a replicated input gets its whole gradient.
///
/// The styles follow those of PyTorch's torch.distributed.tensor.parallel. Here
/// no size needs to divide, and a Linear whose features come in units (heads)
/// is split between units, never within one.

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "crosshatch/dtensor/placement.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/module.h"

namespace crosshatch::tp {

/// \threadsafety immutable: one style serves many modules and ranks.
class ParallelStyle {
 public:
  virtual ~ParallelStyle() = default;

  virtual const char* name() const = 0;

  /// Spreads `module` over `mesh`, which has one axis and this rank on it.
  /// \param module_name for messages.
  /// \error kInvalidArgument for a module that the style does not fit;
  ///     kFailedPrecondition for parameters that are spread already.
  virtual absl::Status Apply(nn::Module& module, const std::string& module_name,
                             const DeviceMesh& mesh) const = 0;
};
using Style = std::shared_ptr<const ParallelStyle>;

struct ColwiseOptions {
  Placement input = Replicate();
  Placement output = Shard(-1);
  /// Hand out the local part as a plain tensor. Its gradient is then taken to
  /// be the local part of the gradient.
  bool use_local_output = false;
};
/// Splits the output features. Linear [out, in]: weight and bias Shard(0).
/// Embedding [rows, width]: weight Shard(1).
Style ColwiseParallel(ColwiseOptions options = {});

struct RowwiseOptions {
  /// Unset: Shard(-1) for Linear, Replicate for Embedding.
  std::optional<Placement> input;
  /// The partial sums are reduced to it: Replicate by an all-reduce, a shard by
  /// a reduce-scatter.
  Placement output = Replicate();
  bool use_local_output = false;
};
/// Splits the input features. Linear [out, in]: weight Shard(1), bias
/// Replicate. Embedding [rows, width]: weight Shard(0), a rank looks up the ids
/// that fall into its rows.
Style RowwiseParallel(RowwiseOptions options = {});

/// Splits the activations along `sequence_dim`; parameters are replicated, and
/// their gradients summed over the axis. For norms and dropout.
Style SequenceParallel(int sequence_dim = 1, bool use_local_output = false);

struct PrepareInputOptions {
  /// How a plain first input lies.
  Placement input = Replicate();
  /// How the module wants it.
  Placement desired = Replicate();
};
/// Touches no parameter: brings the module's first input into a layout once,
/// for several submodules that want it so.
Style PrepareModuleInput(PrepareInputOptions options);

struct PrepareOutputOptions {
  /// How a plain first output lies.
  Placement output = Replicate();
  Placement desired = Replicate();
  bool use_local_output = false;
};
Style PrepareModuleOutput(PrepareOutputOptions options);

}  // namespace crosshatch::tp

#endif  // CROSSHATCH_TP_PARALLEL_STYLE_H_
