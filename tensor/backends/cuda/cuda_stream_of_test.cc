// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/backends/cuda/cuda_stream_of.h"

#include <cstdint>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/emulation/cuda_runtime.h"
#include "crosshatch/tensor/backends/cuda/cuda_backend.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/launch.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/rank_context.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

// Sets all bytes of `x` with the runtime, as a program's own kernel would.
void Clear(const Tensor& x) {
  LaunchKernel([to = x.data<float>(), n = x.numel()](KernelContext& on) {
    CH_CHECK_EQ(cudaMemsetAsync(to, 0, static_cast<size_t>(n) * sizeof(float),
                                static_cast<cudaStream_t>(CudaStreamOf(on))),
                cudaSuccess);
  });
}

TEST(CudaStreamOfTest, IsInTheOrderOfWhatIsIssued) {
  for (const uint64_t seed : {0, 1, 2, 3}) {
    RankContext context({.backend = *CudaBackend(0), .adversarial_seed = seed});
    const RankContextScope scope(&context);
    const Tensor x = Full({5}, 3.0f);
    Clear(x);
    EXPECT_EQ(Add(x, 1.0).ToVector<float>(), std::vector<float>(5, 1.0f));
  }
}

TEST(CudaStreamOfDeathTest, OfAnotherDeviceThereIsNone) {
  RankContext context({});
  const RankContextScope scope(&context);
  EXPECT_DEATH(LaunchKernel([](KernelContext& on) { CudaStreamOf(on); }),
               "CudaStreamOf on a rank whose device is cpu");
}

}  // namespace
}  // namespace crosshatch
