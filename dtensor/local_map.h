// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_LOCAL_MAP_H_
#define CROSSHATCH_DTENSOR_LOCAL_MAP_H_

/// \file
/// Runs a function of local tensors on distributed ones. The caller declares
/// what only the caller knows: the layouts of inputs and outputs, and of the
/// local gradients.
///
///     // Each rank has its own rows of x and all of w.
///     CH_ASSIGN_OR_RETURN(TensorList y, LocalMap(
///         [](TensorSpan in) -> TensorList { return {MatMul(in[0], in[1])}; },
///         {x, w}, mesh,
///         {.inputs = {{rows, /*grad_layout=*/rows},
///                     {replicated, /*grad_layout=*/sums}},
///          .outputs = {{rows, {8, 4}, /*grad_layout=*/rows}}}));
///
/// grad_layout.h lists the layouts that gradients may have.

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
    /// The layout of the input when the function receives its local part.
    /// Unset: a plain tensor, which is passed on unchanged.
    std::optional<Layout> layout = {};
    /// The gradients from the function's backward are the ranks' parts of a
    /// distributed gradient in this layout. Required, without a default, if the
    /// input requires a gradient.
    std::optional<Layout> grad_layout = {};
  };
  struct Output {
    /// The layout of the tensor whose shard on this rank the function returns.
    Layout layout;
    /// The global sizes of that tensor.
    Shape sizes;
    /// The layout of the gradient whose local part enters the function's
    /// backward. Required if the output requires a gradient.
    std::optional<Layout> grad_layout = {};
  };

  std::vector<Input> inputs = {};
  std::vector<Output> outputs = {};
  /// Redistributes inputs in other layouts (differentiably) instead of failing.
  bool redistribute_inputs = false;
};

/// Maps the local inputs to the local outputs. Called once, before LocalMap
/// returns.
using LocalFunction = absl::FunctionRef<TensorList(TensorSpan locals)>;

/// Runs `function` on the local parts of `inputs`. All ranks of the mesh call
/// it alike. Checks that each output has the shape of its shard; sizes that do
/// not fit the declaration are a bug of the function.
/// \returns the outputs, distributed over `mesh`.
/// \error kInvalidArgument, before anything runs or moves: a number of inputs
///     other than declared; a layout on another mesh or of another number of
///     dims; an input in another layout than declared (without
///     redistribute_inputs), plain where declared distributed, or the reverse;
///     a gradient's layout that is missing or not allowed (grad_layout.h); a
///     plain input that requires a gradient; a rank outside the mesh. After the
///     function ran: a number of outputs other than declared; an output that
///     requires a gradient without a layout for it, or that is Partial by an op
///     other than a sum.
absl::StatusOr<TensorList> LocalMap(LocalFunction function, TensorSpan inputs,
                                    const DeviceMesh& mesh,
                                    const LocalMapSpec& spec);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_LOCAL_MAP_H_
