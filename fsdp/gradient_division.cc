// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/gradient_division.h"

namespace crosshatch::fsdp {

GradientDivision PlanGradientDivision(DType reduce_dtype, double factor,
                                      bool replicated, bool force_sum) {
  GradientDivision division;
  if (force_sum) {
    division.after = 1 / factor;
  } else if (reduce_dtype == kFloat16 && factor > 1) {
    double power = 1;
    while (power * power < factor) power *= 2;
    division.before = 1 / power;
    (replicated ? division.all_reduce : division.reduce_scatter) =
        power / factor;
  } else {
    division.reduce_scatter = 1 / factor;
  }
  return division;
}

}  // namespace crosshatch::fsdp
