// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TP_PARALLEL_STYLE_H_
#define CROSSHATCH_TP_PARALLEL_STYLE_H_

/// \file
/// Styles: how one module is distributed over the tensor-parallel axis. A style
/// turns the module's parameters into DTensors and adds hooks to its forward
/// that redistribute inputs and outputs; the module itself is written for one
/// device. ParallelizeModule (parallelize_module.h) applies styles by name
/// patterns; style_parts.h has the building blocks for your own styles.
///
/// A layout is one placement, that of the one axis. Negative dims count from
/// the end. A plain tensor at an input is taken to be the local shard of one in
/// the style's `input` placement; a DTensor is redistributed if need be. A
/// gradient has the layout of its tensor, so a replicated input gets its whole
/// gradient.
///
/// The styles follow PyTorch's torch.distributed.tensor.parallel. Sizes need
/// not divide by the ranks, and a Linear can be split between units of features
/// (heads) so that each stays whole (ColwiseOptions::unit).

#include <cstdint>
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

/// \threadsafety immutable: one style serves many modules and ranks.
class ParallelStyle {
 public:
  virtual ~ParallelStyle() = default;

  virtual const char* name() const = 0;

  /// Returns whether the style fits `module`. Called for all modules of a plan
  /// before any is changed.
  /// \error kInvalidArgument if it does not fit.
  virtual absl::Status Check(const nn::Module& /*module*/,
                             const std::string& /*module_name*/) const {
    return absl::OkStatus();
  }

  /// Distributes `module` over `mesh`, which has one axis and contains this
  /// rank.
  /// \param module_name for messages.
  /// \pre Check(module, module_name) is OK
  /// \error kFailedPrecondition for parameters that are distributed already.
  virtual absl::Status Apply(nn::Module& module, const std::string& module_name,
                             const DeviceMesh& mesh) const = 0;
};
using Style = std::shared_ptr<const ParallelStyle>;

struct ColwiseOptions {
  Placement input = Replicate();
  Placement output = Shard(-1);
  /// Return the local shard as a plain tensor. Its gradient is taken to be the
  /// local shard of the gradient.
  bool use_local_output = false;
  /// Output features of a Linear that stay on one rank: the width of a head or,
  /// for grouped queries, of all query heads that share a key head. Divides the
  /// output features.
  int64_t unit = 1;
  /// If not 0, the width of one query head: if there are fewer units than
  /// ranks, units are split between subunits, if that makes the largest shard
  /// smaller.
  int64_t subunit = 0;
  /// For key and value projections, if not 0: the number of query heads; `unit`
  /// is the width of one key head then. If there are more ranks than key/value
  /// heads (units), each head is replicated on neighbouring ranks, if ranks are
  /// a multiple of units and divide the query heads, and `output` is Shard(-1).
  /// With `use_local_output`, the styles of queries and of the projection back
  /// need `subunit` then; ParallelizeModule checks this. See below.
  int64_t query_heads = 0;
};
/// Splits the output features. Linear [out, in]: weight and bias Shard(0).
/// Embedding [rows, width]: weight Shard(1).
///
/// With replicated heads the weight is on the axis parted in two, for example
/// tp in tp_unit and tp_copy, as [S(0),R], and gradients of replicas are summed
/// once. The output is [..., ranks * unit], Shard(-1): each rank has one head.
/// An adapter that is added to it needs the same `unit` and `query_heads`.
/// Otherwise ranks without a head get the heads that they need in the op that
/// reads them.
Style ColwiseParallel(ColwiseOptions options = {});

struct RowwiseOptions {
  /// Unset: Shard(-1) for Linear, Replicate for Embedding.
  std::optional<Placement> input = {};
  /// The layout to which partial sums are reduced: Replicate by an all-reduce,
  /// Shard by a reduce-scatter.
  Placement output = Replicate();
  /// Return the local shard as a plain tensor.
  bool use_local_output = false;
  /// As in ColwiseOptions, of input features: for the output projection of an
  /// attention, the same as for its query projection.
  int64_t unit = 1;
  int64_t subunit = 0;
};
/// Splits the input features. Linear [out, in]: weight Shard(1), bias
/// Replicate. Embedding [rows, width]: weight Shard(0), each rank looks up the
/// ids of its rows.
Style RowwiseParallel(RowwiseOptions options = {});

/// Splits activations along `sequence_dim`; parameters are replicated, and
/// their gradients summed over the axis. For norms and dropout.
Style SequenceParallel(int sequence_dim = 1, bool use_local_output = false);

struct ReplicateOptions {
  /// Return plain tensors.
  bool use_local_output = false;
};
/// Computes the whole module on every rank: its parameters, and those below it
/// that no other style of the plan distributes, are replicated, and all
/// floating-point inputs and outputs redistributed to Replicate. A plain input
/// is taken to be equal on all ranks. Integers stay as they are.
Style ReplicateParallel(ReplicateOptions options = {});

/// Placements of a module's inputs or outputs, in order. An input or output is
/// left as it is if its entry is std::nullopt or if it is beyond the list.
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

/// The placements of an input that is given by name (nn::NamedInputs).
struct NamedPlacement {
  Placement input = Replicate();
  Placement desired = Replicate();
};

struct PrepareInputOptions {
  /// Placements of plain inputs.
  PlacementList input = Replicate();
  /// Placements that the module takes; std::nullopt where `input` has it.
  PlacementList desired = Replicate();
  /// Inputs by name, for modules that name theirs. An input is listed either
  /// here or above: if all are listed by name, `input` and `desired` are {}.
  std::map<std::string, NamedPlacement> named = {};
  /// Pass local shards to the module, as plain tensors. The gradients of a
  /// replicated one are taken to be equal on all ranks or, with
  /// sum_local_gradients, to be summands, for example if each rank uses the
  /// input for a part of the result.
  bool use_local_input = false;
  bool sum_local_gradients = false;
};
/// Redistributes a module's inputs once for all submodules that read them, and
/// leaves parameters as they are. An undefined input stays undefined. That
/// there are at least as many inputs as placements is checked in each forward.
/// \error of Check: kInvalidArgument for lists that do not match, for a name
///     that is not one of the module's inputs, and for sum_local_gradients
///     without use_local_input.
Style PrepareModuleInput(PrepareInputOptions options);

struct PrepareOutputOptions {
  /// Placements of plain outputs.
  PlacementList output = Replicate();
  PlacementList desired = Replicate();
  /// Return local shards as plain tensors.
  bool use_local_output = false;
};
/// Redistributes a module's outputs.
Style PrepareModuleOutput(PrepareOutputOptions options);

struct PrepareInputOutputOptions {
  PrepareInputOptions inputs = {};
  PrepareOutputOptions outputs = {};
};
/// Does both of the above.
Style PrepareModuleInputOutput(PrepareInputOutputOptions options);

/// Applies `styles` in order to one module. Hooks of a later style run after
/// those of an earlier one, before and after the forward.
Style Combined(std::vector<Style> styles);

}  // namespace crosshatch::tp

#endif  // CROSSHATCH_TP_PARALLEL_STYLE_H_
