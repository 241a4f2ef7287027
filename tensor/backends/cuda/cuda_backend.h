// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_BACKENDS_CUDA_CUDA_BACKEND_H_
#define CROSSHATCH_TENSOR_BACKENDS_CUDA_CUDA_BACKEND_H_

#include "absl/status/statusor.h"
#include "crosshatch/tensor/backends/cuda/cuda_options.h"
#include "crosshatch/tensor/device_backend.h"

namespace crosshatch {

/// Device::Cuda(index), of the devices that the process sees: the same for
/// equal arguments. It lives as long as the process.
///
/// Every stream is one of CUDA's; its memory is the device's own, which the
/// host cannot address, and host memory beside it is pinned. What a kernel
/// finds wrong with the numbers that it is given, such as an index out of
/// range, ends the program when the host next issues to that stream or waits
/// for it.
///
/// An adversarial stream (RankParts::adversarial_seed) is late at will under
/// emulation only; a device's own streams are never delayed.
/// \error kNotFound: there is no such device; kFailedPrecondition: this build
///     has no code for it.
/// \threadsafety any thread. What it makes for a rank sets the current device
///     of the threads that use it.
absl::StatusOr<const DeviceBackend*> CudaBackend(
    int index, const CudaOptions& options = {});

/// Device::Cuda(0) of a dry run (RankContextOptions::dry_run), which accounts
/// for what the kernels would ask for: it needs no device, nor a driver. It
/// makes no streams and no memory.
const DeviceBackend& CudaBackendForDryRuns();

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_BACKENDS_CUDA_CUDA_BACKEND_H_
