// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/tensor/allocator.h"
#include "crosshatch/tensor/backends/cuda/capability.h"
#include "crosshatch/tensor/backends/cuda/cuda_backend.h"
#include "crosshatch/tensor/backends/cuda/cuda_memory.h"
#include "crosshatch/tensor/backends/cuda/cuda_stream.h"
#include "crosshatch/tensor/kernels/cuda/cuda_api.cuh"
#include "crosshatch/tensor/kernels/cuda/cuda_kernels.h"

namespace crosshatch {
namespace {

using internal::CheckCuda;

class Cuda final : public DeviceBackend {
 public:
  Cuda(int index, const CudaOptions& options)
      : DeviceBackend(Device::Cuda(index), CudaKernels(),
                      /*host_addressable=*/false),
        options_(options) {}

  std::unique_ptr<Stream> MakeStream(const std::string& name,
                                     StreamRole /*role*/,
                                     const RankParts& rank) const override {
    return internal::MakeCudaStream(device().index(), name, rank, options_);
  }
  std::unique_ptr<Allocator> MakeAllocator(bool adversarial) const override {
    return MakeCachingAllocator(
        device(), internal::MakeCudaMemory(device().index()), adversarial);
  }
  std::unique_ptr<Allocator> MakeHostAllocator(
      bool adversarial) const override {
    return MakeCachingAllocator(Device::Cpu(),
                                internal::MakePinnedMemory(device().index()),
                                adversarial);
  }
  absl::Status ReachPeer(const DeviceBackend& peer) const override;

 private:
  const CudaOptions options_;
};

/// Has the kernel table, but no device.
class CudaOfDryRuns final : public DeviceBackend {
 public:
  CudaOfDryRuns()
      : DeviceBackend(Device::Cuda(0), CudaKernels(),
                      /*host_addressable=*/false) {}

  std::unique_ptr<Stream> MakeStream(const std::string& /*name*/,
                                     StreamRole /*role*/,
                                     const RankParts& /*rank*/) const override {
    CH_CHECK(false) << kNoDevice;
    return nullptr;
  }
  std::unique_ptr<Allocator> MakeAllocator(
      bool /*adversarial*/) const override {
    CH_CHECK(false) << kNoDevice;
    return nullptr;
  }
  std::unique_ptr<Allocator> MakeHostAllocator(
      bool /*adversarial*/) const override {
    CH_CHECK(false) << kNoDevice;
    return nullptr;
  }

 private:
  static constexpr char kNoDevice[] =
      "a run that is not dry on CudaBackendForDryRuns(), which has no device: "
      "use CudaBackend(index)";
};

#if defined(CROSSHATCH_CUDA_EMULATION)
constexpr int kOldest = 80;
#else
/// The capability that nvcc compiles for, written as 800 for 8.0.
constexpr int kOldest = std::min({__CUDA_ARCH_LIST__}) / 10;
#endif

absl::Status CheckDevice(int index) {
  int major = 0;
  int minor = 0;
  CheckCuda(
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index),
      "cudaDeviceGetAttribute");
  CheckCuda(
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index),
      "cudaDeviceGetAttribute");
  return internal::CheckCapability(index, major * 10 + minor, kOldest);
}

/// Makes `device` the calling thread's for the scope.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    CheckCuda(cudaGetDevice(&previous_), "cudaGetDevice");
    CheckCuda(cudaSetDevice(device), "cudaSetDevice");
  }
  ~DeviceScope() { CheckCuda(cudaSetDevice(previous_), "cudaSetDevice"); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_ = 0;
};

absl::Status Cuda::ReachPeer(const DeviceBackend& peer) const {
  if (peer.device() == device()) return absl::OkStatus();
  if (peer.device().kind() != Device::Kind::kCuda) {
    std::ostringstream text;
    text << "the kernels of " << device() << " do not use the memory of "
         << peer.device();
    return absl::InvalidArgumentError(text.str());
  }
  const int other = peer.device().index();
  int can_reach = 0;
  CheckCuda(cudaDeviceCanAccessPeer(&can_reach, device().index(), other),
            "cudaDeviceCanAccessPeer");
  if (can_reach == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cuda:", device().index(), " cannot reach the memory of cuda:", other,
        ": no peer access between the two on this machine"));
  }
  const DeviceScope scope(device().index());
  const cudaError_t error = cudaDeviceEnablePeerAccess(other, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();  // The runtime keeps it otherwise.
  } else {
    CheckCuda(error, "cudaDeviceEnablePeerAccess");
  }
  return absl::OkStatus();
}

}  // namespace

const DeviceBackend& CudaBackendForDryRuns() {
  static const auto* const backend = new CudaOfDryRuns;
  return *backend;
}

absl::StatusOr<const DeviceBackend*> CudaBackend(int index,
                                                 const CudaOptions& options) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();  // The runtime keeps it otherwise.
    return absl::NotFoundError(
        absl::StrCat("no CUDA device: ", cudaGetErrorName(error), " (",
                     cudaGetErrorString(error), ")"));
  }
  if (index < 0 || index >= count) {
    return absl::NotFoundError(absl::StrCat("no CUDA device ", index,
                                            ": the process sees ", count,
                                            ", counted from 0"));
  }
  const absl::Status runs = CheckDevice(index);
  if (!runs.ok()) return runs;
  static std::mutex mutex;
  static auto* const backends = new std::map<std::pair<int, bool>, Cuda>;
  std::lock_guard<std::mutex> lock(mutex);
  return &backends->try_emplace({index, options.tf32}, index, options)
              .first->second;
}

}  // namespace crosshatch
