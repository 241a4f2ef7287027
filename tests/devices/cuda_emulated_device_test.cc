// SPDX-License-Identifier: Apache-2.0

/// \file
/// Tests that need emulated CUDA devices: counts of runtime calls, and delayed
/// streams.

#include <cstdint>
#include <string>

#include "crosshatch/emulation/cuda_runtime.h"
#include "crosshatch/tensor/backends/cuda/cuda_backend.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/matmul.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tests/devices/loader_testutil.h"
#include "crosshatch/tests/devices/training_testutil.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::HasSubstr;

TEST(EmulatedCudaDeviceTest, TrainsOnAnotherDeviceAndInAnyOrder) {
  for (uint64_t seed : {1, 2}) {
    ExpectTrainsAsOnTheCpu(**CudaBackend(1), seed);
  }
}

TEST(EmulatedCudaDeviceTest, NamesADeviceThatIsNotThere) {
  for (int index : {-1, 2}) {
    const auto backend = CudaBackend(index);
    EXPECT_EQ(backend.status().code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(backend.status().message()),
                HasSubstr("the process sees 2"));
  }
}

TEST(EmulatedCudaDeviceTest, AStepWaitsForNothingAndAllocatesNothing) {
  const Tensor a = Zeros({40, 30});
  const auto step = [&] {
    Tensor x = a;
    for (int i = 0; i < 5; ++i) x = MatMul(x, MatMul(Transpose(a, 0, 1), x));
  };
  step();
  step();
  const emulation::RuntimeCounts before = emulation::CountsOfRuntime();
  step();
  const emulation::RuntimeCounts after = emulation::CountsOfRuntime();
  EXPECT_EQ(after.kernels - before.kernels, 10);
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.synchronizations, before.synchronizations);
  EXPECT_EQ(after.host_functions, before.host_functions);
}

TEST(EmulatedCudaDeviceDeathTest, TakesWhatALoaderMadeByACopy) {
  ExpectTakesWhatALoaderMade();
}

TEST(EmulatedCudaDeviceDeathTest, NamesThePlaceOfAnIdOutOfRange) {
  ExpectNamesThePlaceOfAnIdOutOfRange();
}

}  // namespace
}  // namespace crosshatch
