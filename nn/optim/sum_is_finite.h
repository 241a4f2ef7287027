// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_OPTIM_SUM_IS_FINITE_H_
#define CROSSHATCH_NN_OPTIM_SUM_IS_FINITE_H_

#include <string>

#include "absl/status/statusor.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::nn {

/// Returns whether the sum of all ranks' `sum` is finite, the same on every
/// rank: of squares in float64, which do not overflow by themselves, it is if
/// all elements are. Called by all ranks of the root meshes in use
/// (RootCommunicators), whatever a rank holds on them. Waits for the current
/// stream once; true on a dry run.
///
/// \param sum one float64, written to.
/// \param label of the all-reduces.
/// \error the rank's first error, if a collective failed.
absl::StatusOr<bool> SumIsFinite(const Tensor& sum, const std::string& label);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_OPTIM_SUM_IS_FINITE_H_
