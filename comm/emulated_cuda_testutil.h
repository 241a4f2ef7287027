// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_EMULATED_CUDA_TESTUTIL_H_
#define CROSSHATCH_COMM_EMULATED_CUDA_TESTUTIL_H_

#include <cstdint>
#include <vector>

#include "crosshatch/tensor/device_backend.h"

namespace crosshatch {

/// By rank, the backend of emulated CUDA device `rank % devices`. Takes the
/// place of LocalOptions::backends.
std::vector<const DeviceBackend*> OnEmulatedCuda(int ranks, int devices);

/// Copies between memory of the host and that of emulated devices, whichever is
/// on which side, and returns when it is done (ConformanceEngine::copy).
void CopyOnEmulatedCuda(void* to, const void* from, int64_t bytes);

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_EMULATED_CUDA_TESTUTIL_H_
