// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_BACKENDS_CUDA_CUDA_BACKEND_H_
#define CROSSHATCH_TENSOR_BACKENDS_CUDA_CUDA_BACKEND_H_

#include "absl/status/statusor.h"
#include "crosshatch/tensor/backends/cuda/cuda_options.h"
#include "crosshatch/tensor/device_backend.h"

namespace crosshatch {

/// Returns the backend of Device::Cuda(index), of the devices that the process
/// sees. Equal arguments give the same backend, which lives as long as the
/// process.
///
/// Every stream is a CUDA stream. Its memory is device memory, which the host
/// cannot address; host memory for it is pinned. If a kernel finds an invalid
/// argument, such as an index out of range, the program ends when the host next
/// issues to that stream or waits for it.
///
/// An adversarial stream (RankParts::adversarial_seed) is delayed only under
/// emulation, never on a device.
/// \error kNotFound if there is no such device; kFailedPrecondition if this
///     build has no code for it.
/// \threadsafety Any thread. What it creates for a rank sets the current device
///     of the threads that use it.
absl::StatusOr<const DeviceBackend*> CudaBackend(
    int index, const CudaOptions& options = {});

/// Returns the backend of Device::Cuda(0) for dry runs
/// (RankContextOptions::dry_run), which account for the memory that the kernels
/// would request. It needs neither a device nor a driver, and creates no
/// streams and no memory.
const DeviceBackend& CudaBackendForDryRuns();

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_BACKENDS_CUDA_CUDA_BACKEND_H_
