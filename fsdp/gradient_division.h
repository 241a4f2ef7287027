// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_GRADIENT_DIVISION_H_
#define CROSSHATCH_FSDP_GRADIENT_DIVISION_H_

/// \file
/// Where the sum of gradients is divided: a value, computed by one function.

#include "crosshatch/tensor/dtype.h"

namespace crosshatch::fsdp {

/// Factors that multiply gradients on their way through a reduction. Their
/// product is 1 / divide factor. A factor of 1 costs nothing.
struct GradientDivision {
  /// The unsharded gradients, before the reduce-scatter.
  double before = 1;
  /// The result of the reduce-scatter, within the collective.
  double reduce_scatter = 1;
  /// The result of the sum over replicas, within the collective.
  double all_reduce = 1;
  /// The reduced shard, by a pass of its own.
  double after = 1;

  friend bool operator==(const GradientDivision& a, const GradientDivision& b) {
    return a.before == b.before && a.reduce_scatter == b.reduce_scatter &&
           a.all_reduce == b.all_reduce && a.after == b.after;
  }
};

/// How to divide by `factor`.
///
/// The rule is one division in float32 or wider, within the reduce-scatter.
/// float16 overflows at 65504 and loses bits below 6e-5, so there gradients are
/// divided by the power of two next to sqrt(factor), exactly, before they are
/// summed, and by the rest in the last collective.
/// \param replicated whether a sum over replicas follows (HSDP).
/// \param force_sum collectives only sum; the division is a pass after them.
GradientDivision PlanGradientDivision(DType reduce_dtype, double factor,
                                      bool replicated, bool force_sum);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_GRADIENT_DIVISION_H_
