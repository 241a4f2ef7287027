// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/third_party/cuda/smoke.h"

#include <vector>

#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

TEST(CudaSmokeTest, AKernelRuns) {
  ASSERT_GT(CountCudaDevices(), 0);
  std::vector<float> values(1000, 2.0f);
  EXPECT_TRUE(AddOneOnDevice(values.data(), 1000));
  EXPECT_EQ(values, std::vector<float>(1000, 3.0f));
}

}  // namespace
}  // namespace crosshatch::internal
