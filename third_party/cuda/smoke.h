// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_THIRD_PARTY_CUDA_SMOKE_H_
#define CROSSHATCH_THIRD_PARTY_CUDA_SMOKE_H_

/// \file
/// What the test of cuda_library compiles, links and runs.

namespace crosshatch::internal {

/// The number of CUDA devices; 0 without a driver too.
int CountCudaDevices();

/// Adds 1 to the `n` floats at `values`, host memory, on the current device.
/// \returns whether every call of the runtime succeeded.
bool AddOneOnDevice(float* values, int n);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_THIRD_PARTY_CUDA_SMOKE_H_
