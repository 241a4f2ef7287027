// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "crosshatch/base/check.h"
#include "crosshatch/emulation/cuda_runtime.h"
#include "crosshatch/tensor/backends/cpu/cpu_backend.h"
#include "crosshatch/tensor/backends/cuda/cuda_backend.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/matmul.h"
#include "crosshatch/tensor/rank_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kBytes = 1 << 20;

// Prints the state of device 0 and exits.
[[noreturn]] void SayDevice0() {
  const auto backend = CudaBackend(0);
  std::fprintf(stderr, "%s\n",
               backend.ok() ? "there it is"
                            : std::string(backend.status().message()).c_str());
  std::exit(0);
}

class CudaMachinesDeathTest : public ::testing::Test {
 protected:
  // The first call of the runtime detects the machine, so each test is a
  // process.
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(CudaMachinesDeathTest, OneWithoutADriver) {
  EXPECT_EXIT(
      {
        emulation::SetDevices(0, kBytes);
        SayDevice0();
      },
      ::testing::ExitedWithCode(0), "no CUDA device: cudaErrorNoDevice");
}

TEST_F(CudaMachinesDeathTest, OneWithADeviceThatIsTooOld) {
  EXPECT_EXIT(
      {
        emulation::SetDevices(1, kBytes, /*capability=*/75);
        SayDevice0();
      },
      ::testing::ExitedWithCode(0),
      "cuda:0 has compute capability 7.5, and the kernels need 8.0 or later");
}

TEST_F(CudaMachinesDeathTest, OneOfTheSameGenerationOrALaterOne) {
  for (int capability : {80, 86, 90, 120}) {
    EXPECT_EXIT(
        {
          emulation::SetDevices(1, kBytes, capability);
          SayDevice0();
        },
        ::testing::ExitedWithCode(0), "there it is");
  }
}

TEST(CudaPeersTest, DevicesReachOneAnotherAndNotTheHost) {
  const DeviceBackend& first = **CudaBackend(0);
  const DeviceBackend& second = **CudaBackend(1);
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(first.ReachPeer(first).ok());
    EXPECT_TRUE(first.ReachPeer(second).ok());
    EXPECT_TRUE(second.ReachPeer(first).ok());
  }
  int current = -1;
  ASSERT_EQ(cudaGetDevice(&current), cudaSuccess);
  EXPECT_EQ(current, 0) << "it is the thread's own affair";
  EXPECT_THAT(std::string(first.ReachPeer(CpuBackend()).message()),
              HasSubstr("the kernels of cuda:0 do not use the memory of cpu"));
  EXPECT_THAT(std::string(CpuBackend().ReachPeer(first).message()),
              HasSubstr("the host cannot address the memory of cuda:0"));
}

TEST(CudaOptionsTest, ComputesInTf32IfRequested) {
  for (bool tf32 : {false, true}) {
    const DeviceBackend* const backend = *CudaBackend(0, {.tf32 = tf32});
    EXPECT_EQ(backend, *CudaBackend(0, {.tf32 = tf32}));
    RankContext context({.backend = backend});
    const RankContextScope scope(&context);
    // TF32 has 10 bits of mantissa.
    const Tensor x = Full({1, 1}, 1 + 0x1p-12);
    EXPECT_EQ(MatMul(x, Ones({1, 1})).ToVector<float>()[0],
              tf32 ? 1.0f : 1 + 0x1p-12f);
  }
}

TEST(CudaDryRunDeathTest, TheOneOfDryRunsComputesNothing) {
  EXPECT_EQ(CudaBackendForDryRuns().device(), Device::Cuda(0));
  EXPECT_DEATH(RankContext({.backend = &CudaBackendForDryRuns()}),
               HasSubstr("a run that is not dry on CudaBackendForDryRuns"));
}

// The workspace of a kernel is known without a device.
TEST(CudaDryRunTest, AccountsTheWorkspacesOfKernels) {
  RankContext context({.backend = &CudaBackendForDryRuns(), .dry_run = true});
  const RankContextScope scope(&context);
  const Tensor x = MatMul(Ones({6, 5}), Ones({5, 7}));
  EXPECT_EQ(x.sizes(), (Shape{6, 7}));
  EXPECT_GT(context.device_allocator().stats().peak_total, 0);
}

// A kernel that runs late writes to memory that was returned too early, and the
// emulation aborts.
TEST_F(CudaMachinesDeathTest, OneThatEverOtherSizesFill) {
  EXPECT_EXIT(
      {
        emulation::SetDevices(1, 8 << 20);
        for (const uint64_t seed : {1, 2, 3}) {
          RankContext context(
              {.backend = CudaBackend(0).value(), .adversarial_seed = seed});
          const RankContextScope scope(&context);
          Stream& side = context.SideStream("side");
          for (int64_t step = 0; step < 24; ++step) {
            // 10 to 33 eighths of a MiB of 8 MiB, some leased on another
            // stream.
            const int64_t count = (10 + step) << 15;
            std::optional<StreamScope> on_side;
            if (step % 3 == 0) on_side.emplace(side);
            const Tensor x = Full({count}, static_cast<double>(step));
          }
          CH_CHECK(context.Synchronize().ok());
          CH_CHECK_LE(context.allocator().reserved_bytes(), 8 << 20);
        }
        std::fprintf(stderr, "all have run\n");
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "all have run");
}

}  // namespace
}  // namespace crosshatch
