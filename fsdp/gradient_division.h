// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_GRADIENT_DIVISION_H_
#define CROSSHATCH_FSDP_GRADIENT_DIVISION_H_

/// \file
/// PlanGradientDivision: where in a reduction the sum of gradients is divided.

#include "crosshatch/tensor/dtype.h"

namespace crosshatch::fsdp {

/// Factors that multiply gradients in the stages of a reduction. Their product
/// is 1 / divide factor. A factor of 1 costs nothing.
struct GradientDivision {
  /// Applied to unsharded gradients before the reduce-scatter.
  double before = 1;
  /// Applied to the result of the reduce-scatter, within the collective.
  double reduce_scatter = 1;
  /// Applied to the result of the all-reduce over replicas, within the
  /// collective.
  double all_reduce = 1;
  /// Applied to the reduced shard by a separate pass.
  double after = 1;

  friend bool operator==(const GradientDivision& a, const GradientDivision& b) {
    return a.before == b.before && a.reduce_scatter == b.reduce_scatter &&
           a.all_reduce == b.all_reduce && a.after == b.after;
  }
};

/// Returns factors that divide the sum by `factor`.
///
/// By default there is one division in float32 or wider, within the
/// reduce-scatter. float16 overflows at 65504 and loses bits below 6e-5. So
/// float16 gradients are divided exactly, before they are summed, by the
/// smallest power of two that is at least sqrt(factor), and by the rest in the
/// last collective.
/// \param replicated whether an all-reduce over replicas follows (HSDP).
/// \param force_sum whether collectives only sum, so that a pass after them
///     divides.
GradientDivision PlanGradientDivision(DType reduce_dtype, double factor,
                                      bool replicated, bool force_sum);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_GRADIENT_DIVISION_H_
