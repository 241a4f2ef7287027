// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TP_PARALLEL_STYLE_H_
#define CROSSHATCH_TP_PARALLEL_STYLE_H_

/// \file
/// Styles: how one module is spread over the tensor-parallel axis. A style
/// turns the module's parameters into DTensors and puts hooks around its
/// forward that bring inputs and outputs into the layouts it names; the module
/// itself is written for one device. parallelize_module.h applies styles by
/// name patterns; style_parts.h has what styles of a program's own are made of.
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

#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/dtensor/layout/placement.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/module.h"

namespace crosshatch::tp {

/// How a module hands out its first output, or a style its first input to it.
struct HandedOut {
  Placement placement;
  /// As a plain tensor, this rank's part of what lies so.
  bool plain = false;
};

/// \threadsafety immutable: one style serves many modules and ranks.
class ParallelStyle {
 public:
  virtual ~ParallelStyle() = default;

  virtual const char* name() const = 0;

  /// Whether the style fits `module`: asked of all modules of a plan before any
  /// is spread.
  /// \error kInvalidArgument for one that it does not fit.
  virtual absl::Status Check(const nn::Module& /*module*/,
                             const std::string& /*module_name*/) const {
    return absl::OkStatus();
  }

  /// Spreads `module` over `mesh`, which has one axis and this rank on it.
  /// \param module_name for messages.
  /// \pre Check(module, module_name) is OK
  /// \error kFailedPrecondition for parameters that are spread already.
  virtual absl::Status Apply(nn::Module& module, const std::string& module_name,
                             const DeviceMesh& mesh) const = 0;

  /// \name What checks of flows know of `module`
  /// They are made when a plan is laid and, of plain tensors, at each forward
  /// (ParallelizeModule).
  /// @{

  /// As what a plain first input is taken; nullopt where the style does not
  /// touch it.
  virtual std::optional<Placement> PlainInput(
      const nn::Module& /*module*/) const {
    return std::nullopt;
  }
  /// Whether it spreads all plain parameters below the module, too.
  virtual bool SpreadsBelow() const { return false; }
  /// How the module itself gets its first input; nullopt where the style does
  /// not touch it, or never makes it plain.
  virtual std::optional<HandedOut> HandedIn(
      const nn::Module& /*module*/) const {
    return std::nullopt;
  }
  /// Nullopt where the style does not touch the first output.
  virtual std::optional<HandedOut> FirstOutput(
      const nn::Module& /*module*/) const {
    return std::nullopt;
  }
  /// @}
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
///
/// Where there are more ranks than units of a Linear's output and others read
/// these (keys and values, LinearOptions::out_readers), neighbouring ranks hold
/// copies: its weight lies on the axis parted in two, say tp in tp_unit and
/// tp_copy, as [S(0),R], and its output, Shard(-1) of `ranks` units, repeats
/// each unit so many times. The copies' gradients are summed once. It is so
/// where the ranks are a multiple of the units and divide the readers, and
/// `output` is Shard(-1); else some ranks have no unit, and those that need one
/// get it in the op that reads it.
Style ColwiseParallel(ColwiseOptions options = {});

struct RowwiseOptions {
  /// Unset: Shard(-1) for Linear, Replicate for Embedding.
  std::optional<Placement> input = {};
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

struct ReplicateOptions {
  bool use_local_output = false;
};
/// Every rank computes the whole module: its parameters and those below that no
/// other style of the plan spreads are replicated, all floating-point inputs
/// and outputs brought to Replicate. A plain input is taken to be equal on all
/// ranks; integers stay as they come.
Style ReplicateParallel(ReplicateOptions options = {});

/// Placements of a module's inputs or of its outputs, in order. One that is
/// std::nullopt, or beyond the list, is left as it is.
class PlacementList {
 public:
  PlacementList(Placement first) : entries_{first} {}
  PlacementList(std::initializer_list<std::optional<Placement>> entries)
      : entries_(entries) {}
  PlacementList(std::vector<std::optional<Placement>> entries)
      : entries_(std::move(entries)) {}

  const std::vector<std::optional<Placement>>& entries() const {
    return entries_;
  }

 private:
  std::vector<std::optional<Placement>> entries_;
};

/// An input that goes by its name (nn/named_inputs.h).
struct NamedPlacement {
  Placement input = Replicate();
  Placement desired = Replicate();
};

struct PrepareInputOptions {
  /// How plain inputs lie.
  PlacementList input = Replicate();
  /// How the module wants them; gaps where `input` has them.
  PlacementList desired = Replicate();
  /// Inputs by name, for modules that name theirs. No input comes here and
  /// above: where all come by name, `input` and `desired` are {}.
  std::map<std::string, NamedPlacement> named = {};
  /// Hand the module plain tensors, the local parts. Gradients of a replicated
  /// one that come back are taken to be equal on all ranks, or, with
  /// sum_local_gradients, to be summands, as where each rank uses the input for
  /// a part of the result.
  bool use_local_input = false;
  bool sum_local_gradients = false;
};
/// Touches no parameter: brings the module's inputs into layouts once, for
/// several submodules that want them so. An undefined input stays undefined;
/// that there are as many inputs as placements is checked at each forward.
/// \error of Check: kInvalidArgument for lists of different lengths or gaps,
///     for a name that is not one of the module's inputs, and for
///     sum_local_gradients without use_local_input.
Style PrepareModuleInput(PrepareInputOptions options);

struct PrepareOutputOptions {
  /// How plain outputs lie.
  PlacementList output = Replicate();
  PlacementList desired = Replicate();
  bool use_local_output = false;
};
Style PrepareModuleOutput(PrepareOutputOptions options);

struct PrepareInputOutputOptions {
  PrepareInputOptions inputs = {};
  PrepareOutputOptions outputs = {};
};
/// Both of the above.
Style PrepareModuleInputOutput(PrepareInputOutputOptions options);

/// Applies `styles` in order to one module, which otherwise takes one style:
/// what a later one puts before forward runs later, and so does what it puts
/// after it.
Style Combined(std::vector<Style> styles);

}  // namespace crosshatch::tp

#endif  // CROSSHATCH_TP_PARALLEL_STYLE_H_
