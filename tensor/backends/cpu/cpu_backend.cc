// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/backends/cpu/cpu_backend.h"

#include <memory>
#include <string>

#include "crosshatch/tensor/backends/cpu/cpu_allocator.h"
#include "crosshatch/tensor/backends/cpu/cpu_stream.h"
#include "crosshatch/tensor/kernels/cpu/cpu_kernels.h"

namespace crosshatch {
namespace {

class Cpu final : public DeviceBackend {
 public:
  Cpu()
      : DeviceBackend(Device::Cpu(), CpuKernels(), /*host_addressable=*/true) {}

  std::unique_ptr<Stream> MakeStream(const std::string& name, StreamRole role,
                                     const RankParts& rank) const override {
    return MakeCpuStream(name, role, rank);
  }
  std::unique_ptr<Allocator> MakeAllocator(bool adversarial) const override {
    return MakeCpuAllocator(adversarial);
  }
  std::unique_ptr<Allocator> MakeHostAllocator(
      bool adversarial) const override {
    return MakeCpuAllocator(adversarial);
  }
};

}  // namespace

const DeviceBackend& CpuBackend() {
  static const Cpu backend;
  return backend;
}

}  // namespace crosshatch
