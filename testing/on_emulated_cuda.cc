// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <string>

#include "crosshatch/comm/emulated_cuda_testutil.h"
#include "crosshatch/testing/ranks.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

class OnEmulatedCudaDevices final : public ::testing::Environment {
 public:
  void SetUp() override {
    const char* const device = std::getenv("CROSSHATCH_TEST_DEVICE");
    if (device == nullptr || std::string(device) != "cuda") return;
    // A process that was forked has no threads that streams could use.
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    SetDevicesOfRanks([](int ranks) { return OnEmulatedCuda(ranks, 2); });
  }
};

[[maybe_unused]] const auto* const kOnEmulatedCudaDevices =
    ::testing::AddGlobalTestEnvironment(new OnEmulatedCudaDevices);

}  // namespace
}  // namespace crosshatch
