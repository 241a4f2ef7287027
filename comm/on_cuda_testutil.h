// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_ON_CUDA_TESTUTIL_H_
#define CROSSHATCH_COMM_ON_CUDA_TESTUTIL_H_

/// \file
/// Ranks of a test on CUDA devices: emulated ones, or in tests on GPUs those of
/// the process.

#include <cstdint>
#include <vector>

#include "crosshatch/tensor/device_backend.h"

namespace crosshatch {

/// Returns the backend of CUDA device `rank % devices` by rank, for
/// JobOptions::backends. Ends the test if there are fewer devices.
std::vector<const DeviceBackend*> OnCuda(int ranks, int devices);

/// Creates `devices` devices, at most 8, if they are emulated. Must precede any
/// other use of devices.
/// \returns the number of devices.
int HaveCudaDevices(int devices);

/// Copies between host and device memory in either direction, and returns when
/// it is done (ConformanceEngine::copy).
void CopyOnCuda(void* to, const void* from, int64_t bytes);

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_ON_CUDA_TESTUTIL_H_
