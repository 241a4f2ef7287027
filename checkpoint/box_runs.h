// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_BOX_RUNS_H_
#define CROSSHATCH_CHECKPOINT_BOX_RUNS_H_

/// \file
/// A box of a dense tensor as runs of elements that lie one after the other.

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "crosshatch/dtensor/box.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch::checkpoint {

/// Calls `run` for each maximal run of the elements of `box` in a dense
/// row-major tensor of `sizes`: with the index of its first element in the
/// tensor, and the number of its elements. In the row-major order of the box;
/// never for an empty one.
/// \pre the box lies in the tensor, checked
void ForEachRun(ShapeView sizes, const Box& box,
                absl::FunctionRef<void(int64_t first, int64_t count)> run);

/// As above for the elements that are runs in two dense tensors, of which
/// `a_box` and `b_box`, of equal sizes, are parts: with the index of the first
/// element in each.
void ForEachRunOfBoth(
    ShapeView a_sizes, const Box& a_box, ShapeView b_sizes, const Box& b_box,
    absl::FunctionRef<void(int64_t a_first, int64_t b_first, int64_t count)>
        run);

/// Calls `visit` for parts of `box` of at most `most_bytes`, or of one element,
/// which one after the other are its elements in row-major order; until it
/// returns an error. An empty box is one part.
/// \returns that error
absl::Status ForEachBlock(const Box& box, int64_t element_bytes,
                          int64_t most_bytes,
                          absl::FunctionRef<absl::Status(const Box&)> visit);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_BOX_RUNS_H_
