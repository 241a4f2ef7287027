// SPDX-License-Identifier: Apache-2.0

/// \file
/// Trainings on emulated CUDA devices. The tests of the ops are linked to the
/// same binary.

#include <cstdint>
#include <string>
#include <vector>

#include "crosshatch/emulation/cuda_runtime.h"
#include "crosshatch/tensor/autograd.h"
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

TEST(EmulatedCudaDeviceTest, IsWhatTheTestsOfThisBinaryRunOn) {
  EXPECT_EQ(&RankContext::Current().backend(), *CudaBackend(0));
  EXPECT_EQ(Zeros({1}).device(), Device::Cuda(0));
}

TEST(EmulatedCudaDeviceTest, TrainsOnAnyDeviceAndInAnyOrder) {
  ExpectTrainsAsOnTheCpu(**CudaBackend(0), 0);
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

// What was allocated and recorded before is used again.
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

TEST(EmulatedCudaDeviceTest, ADryRunTakesTheMemoryOfARun) {
  const auto peak = [](bool dry_run) {
    RankContext context({.backend = *CudaBackend(0), .dry_run = dry_run});
    const RankContextScope scope(&context);
    const Tensor x = Zeros({4, 6}, kBFloat16);
    MatMul(x, Transpose(x, 0, 1));
    return context.allocator().stats().peak_total;
  };
  EXPECT_EQ(peak(true), peak(false));
}

}  // namespace
}  // namespace crosshatch
