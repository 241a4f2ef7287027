// SPDX-License-Identifier: Apache-2.0

/// \file
/// Training on a CUDA device, real or emulated. The tests of the ops are linked
/// to the same binary.

#include "crosshatch/tensor/backends/cuda/cuda_backend.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/matmul.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tests/devices/training_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

TEST(CudaDeviceTest, IsWhatTheTestsOfThisBinaryRunOn) {
  EXPECT_EQ(&RankContext::Current().backend(), *CudaBackend(0));
  EXPECT_EQ(Zeros({1}).device(), Device::Cuda(0));
}

TEST(CudaDeviceTest, TrainsAsTheCpuDoes) {
  ExpectTrainsAsOnTheCpu(**CudaBackend(0));
}

TEST(CudaDeviceTest, ADryRunTakesTheMemoryOfARun) {
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
