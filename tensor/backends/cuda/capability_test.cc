// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/backends/cuda/capability.h"

#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

TEST(CapabilityTest, DevicesRunCodeForThemAndForEarlierOnes) {
  for (int capability : {80, 86, 90, 100, 120}) {
    EXPECT_EQ(CheckCapability(0, capability, 80), absl::OkStatus());
  }
}

TEST(CapabilityTest, AnEarlierDeviceTakesAnotherBuild) {
  EXPECT_EQ(CheckCapability(1, 89, 90),
            absl::FailedPreconditionError(
                "cuda:1 has compute capability 8.9, and this build has code "
                "for 9.0 and later: build it with "
                "CROSSHATCH_CUDA_ARCHITECTURES=89"));
}

TEST(CapabilityTest, NoBuildServesADeviceThatIsTooOld) {
  for (int oldest : {80, 90}) {
    EXPECT_EQ(CheckCapability(0, 75, oldest),
              absl::FailedPreconditionError("cuda:0 has compute capability "
                                            "7.5, and the kernels need 8.0 or "
                                            "later"));
  }
}

}  // namespace
}  // namespace crosshatch::internal
