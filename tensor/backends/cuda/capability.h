// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_BACKENDS_CUDA_CAPABILITY_H_
#define CROSSHATCH_TENSOR_BACKENDS_CUDA_CAPABILITY_H_

#include "absl/status/status.h"

namespace crosshatch::internal {

/// Whether a device can run a build's kernels. Compute capabilities are written
/// as 75 for 7.5.
/// \param oldest the one whose PTX is in the build, which devices of it and of
///     later ones compile where the build has no code of theirs.
/// \error kFailedPrecondition saying what the device has and what is needed:
///     another build, or, below what the kernels are written for, another
///     device
absl::Status CheckCapability(int device, int capability, int oldest);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_BACKENDS_CUDA_CAPABILITY_H_
