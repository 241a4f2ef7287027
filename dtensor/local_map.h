// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_LOCAL_MAP_H_
#define CROSSHATCH_DTENSOR_LOCAL_MAP_H_

/// \file
/// A function of local tensors as a function of distributed ones, with all that
/// only its author knows written down: how its inputs and outputs lie, and what
/// the local gradients are of the whole ones.
///
///     // Each rank has its own rows of x and all of w.
///     CH_ASSIGN_OR_RETURN(TensorList y, LocalMap(
///         [](TensorSpan in) -> TensorList { return {MatMul(in[0], in[1])}; },
///         {x, w}, mesh,
///         {.inputs = {{rows, /*grad_layout=*/rows},
///                     {replicated, /*grad_layout=*/sums}},
///          .outputs = {{rows, {8, 4}, /*grad_layout=*/rows}}}));
///
/// What the layouts of gradients may be is in grad_layout.h.

#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/shape.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

struct LocalMapSpec {
  struct Input {
    /// How the input lies when the function gets its local part. Not there: a
    /// plain tensor, which the function gets as it is.
    std::optional<Layout> layout = {};
    /// The gradients that the function's backward gives are the ranks' parts of
    /// a distributed one in this layout. An input that requires a gradient
    /// needs it; there is no default.
    std::optional<Layout> grad_layout = {};
  };
  struct Output {
    /// What the function returns is this rank's part of a tensor in this
    /// layout ...
    Layout layout;
    /// ... and of these global sizes.
    Shape sizes;
    /// The layout of the gradient whose local part goes into the function's
    /// backward. An output that requires a gradient needs it.
    std::optional<Layout> grad_layout = {};
  };

  std::vector<Input> inputs = {};
  std::vector<Output> outputs = {};
  /// Inputs that lie otherwise are redistributed (differentiably). Without it
  /// they are an error.
  bool redistribute_inputs = false;
};

/// From the local inputs to the local outputs. Runs once, at once.
using LocalFunction = absl::FunctionRef<TensorList(TensorSpan locals)>;

/// Runs `function` on the local parts of `inputs`. All ranks of the mesh call
/// it alike. Checks that each output has the shape of its shard: sizes that do
/// not fit the declaration are a bug of the function.
/// \returns the outputs, distributed over `mesh`.
/// \error kInvalidArgument, before anything runs or moves: a number of inputs
/// other than declared; a layout on another mesh or of another number of dims;
/// an input that lies otherwise than declared (without redistribute_inputs), is
/// plain where declared distributed or the reverse; a gradient's layout that is
/// missing or cannot be (grad_layout.h); a plain input that requires a
/// gradient; a rank that is not on the mesh. After the function ran: a number
/// of outputs other than declared; an output that requires a gradient without a
/// layout for it, or is Partial by other than a sum.
absl::StatusOr<TensorList> LocalMap(LocalFunction function, TensorSpan inputs,
                                    const DeviceMesh& mesh,
                                    const LocalMapSpec& spec);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_LOCAL_MAP_H_
