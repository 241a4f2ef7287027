// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_BOX_RUNS_H_
#define CROSSHATCH_CHECKPOINT_BOX_RUNS_H_

/// \file
/// Iterates over a box of a dense tensor in runs of consecutive elements.

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch::checkpoint {

/// Calls `run` for each maximal run of elements of `box` in a dense row-major
/// tensor of `sizes`, in row-major order of the box. Never calls it for an
/// empty box.
/// \param run receives the index of the run's first element in the tensor, and
///     the number of elements.
/// \pre the box is within the tensor; checked.
void ForEachRun(ShapeView sizes, const Box& box,
                absl::FunctionRef<void(int64_t first, int64_t count)> run);

/// Calls `run` for each run of elements that are consecutive in two dense
/// tensors, of which `a_box` and `b_box`, of equal sizes, are parts.
/// \param run receives the index of the first element in each tensor.
void ForEachRunOfBoth(
    ShapeView a_sizes, const Box& a_box, ShapeView b_sizes, const Box& b_box,
    absl::FunctionRef<void(int64_t a_first, int64_t b_first, int64_t count)>
        run);

/// Splits `box` into blocks of at most `most_bytes`, or of one element, and
/// calls `visit` for them in row-major order of the elements. An empty box is
/// one block.
/// \returns the first error of `visit`, after which it is not called again.
absl::Status ForEachBlock(const Box& box, int64_t element_bytes,
                          int64_t most_bytes,
                          absl::FunctionRef<absl::Status(const Box&)> visit);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_BOX_RUNS_H_
