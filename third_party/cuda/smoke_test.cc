// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/third_party/cuda/smoke.h"

#include <vector>

#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

TEST(CudaSmokeTest, KernelRunsWhereThereIsADevice) {
  std::vector<float> values(1000, 2.0f);
  const bool ran = AddOneOnDevice(values.data(), values.size());
  EXPECT_EQ(ran, CountCudaDevices() > 0);
  EXPECT_EQ(values, std::vector<float>(1000, ran ? 3.0f : 2.0f));
}

}  // namespace
}  // namespace crosshatch::internal
