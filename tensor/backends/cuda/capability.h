// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_BACKENDS_CUDA_CAPABILITY_H_
#define CROSSHATCH_TENSOR_BACKENDS_CUDA_CAPABILITY_H_

#include "absl/status/status.h"

namespace crosshatch::internal {

/// Checks that a device can run a build's kernels. Compute capabilities are
/// written as 75 for 7.5.
/// \param oldest the capability whose PTX is in the build. Later devices
///     compile it if the build has no code for them.
/// \error kFailedPrecondition naming the device's capability and what is
///     needed: another build, or another device if the kernels do not support
///     it.
absl::Status CheckCapability(int device, int capability, int oldest);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_BACKENDS_CUDA_CAPABILITY_H_
