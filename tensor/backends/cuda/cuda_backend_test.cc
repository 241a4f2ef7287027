// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/backends/cuda/cuda_backend.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

// Linked with the toolkit's libraries; runs with devices or without.
TEST(CudaBackendTest, NamesADeviceThatIsNotThere) {
  const auto backend = CudaBackend(1000);
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(backend.status().message()),
              ::testing::HasSubstr("no CUDA device"));
}

TEST(CudaBackendTest, EachDeviceHasOne) {
  for (int i = 0; CudaBackend(i).ok(); ++i) {
    EXPECT_EQ((*CudaBackend(i))->device(), Device::Cuda(i));
    EXPECT_EQ(*CudaBackend(i), *CudaBackend(i));
    EXPECT_FALSE((*CudaBackend(i))->host_addressable());
  }
}

}  // namespace
}  // namespace crosshatch
