// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/backends/cuda/cuda_backend.h"
#include "crosshatch/tests/devices/on_device_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

class OnCudaDevice final : public OnDevice {
 public:
  OnCudaDevice()
      : OnDevice([]() -> const DeviceBackend& { return **CudaBackend(0); }) {}

  void SetUp() override {
    // A forked process has no threads for its streams.
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    OnDevice::SetUp();
  }
};

[[maybe_unused]] const auto* const kOnCudaDevice =
    ::testing::AddGlobalTestEnvironment(new OnCudaDevice);

}  // namespace
}  // namespace crosshatch
