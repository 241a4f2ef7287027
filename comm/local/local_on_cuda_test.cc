// SPDX-License-Identifier: Apache-2.0

/// \file
/// Tests of ranks on devices that the conformance suite does not contain.

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/on_cuda_testutil.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/emulation/cuda_runtime.h"
#include "crosshatch/tensor/backends/cpu/cpu_backend.h"
#include "crosshatch/tensor/backends/cuda/cuda_backend.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 4;
constexpr int64_t kCount = 333;

// Returns numbers whose sum depends on the order of additions.
std::vector<float> NumbersOf(int rank) {
  std::vector<float> numbers;
  for (int64_t i = 0; i < kCount; ++i) {
    const auto mixed = static_cast<uint32_t>((i * 7919 + rank * 104729) % 9973);
    numbers.push_back((static_cast<float>(mixed) - 5000.0f) *
                      (rank % 2 == 0 ? 1e-3f : 1e3f));
  }
  return numbers;
}

// Returns the result of an all-reduce in `dtype` by rank.
std::vector<std::vector<float>> AllReduced(DType dtype,
                                           const JobOptions& options) {
  std::vector<std::vector<float>> results(kRanks);
  const absl::Status status = RunLocal(
      kRanks,
      [&](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(auto all,
                            world.Group("all", world.AllRanks(), "comm"));
        RankContext& context = world.context();
        const std::vector<float> numbers = NumbersOf(world.rank());
        const Tensor x = ToDType(
            FromValues<float>({kCount}, absl::MakeConstSpan(numbers)), dtype);
        Stream& stream = context.SideStream("comm");
        stream.Wait(context.compute_stream().Record());
        CH_RETURN_IF_ERROR(AllReduce(*all, x.raw_data(), kCount, dtype,
                                     ReduceOp::kSum, stream, "sum"));
        context.compute_stream().Wait(stream.Record());
        results[static_cast<size_t>(world.rank())] =
            ToDType(x, kFloat32).ToVector<float>();
        return absl::OkStatus();
      },
      options);
  EXPECT_TRUE(status.ok()) << status;
  return results;
}

TEST(LocalOnCudaTest, SumsHaveTheBitsOfTheCpu) {
  for (DType dtype : {kFloat32, kBFloat16, kFloat64}) {
    const auto expected = AllReduced(dtype, {});
    for (int devices : {1, 2}) {
      for (uint64_t seed : {0, 1, 2, 3}) {
        const auto results =
            AllReduced(dtype, {.backends = OnCuda(kRanks, devices),
                               .test = {.adversarial_seed = seed}});
        ASSERT_EQ(results.size(), expected.size());
        for (size_t rank = 0; rank < results.size(); ++rank) {
          ASSERT_EQ(results[rank].size(), expected[rank].size());
          EXPECT_EQ(std::memcmp(results[rank].data(), expected[rank].data(),
                                kCount * sizeof(float)),
                    0)
              << Name(dtype) << " on " << devices << " devices, seed " << seed;
        }
      }
    }
  }
}

// Ranks synchronize by events: no thread waits for a device.
TEST(LocalOnCudaTest, ACollectiveIsIssuedAndNotWaitedFor) {
  // By rank, before and after one collective of all.
  std::vector<emulation::RuntimeCounts> before(kRanks), after(kRanks);
  const absl::Status status =
      RunLocal(kRanks,
               [&](World& world) -> absl::Status {
                 CH_ASSIGN_OR_RETURN(
                     auto all, world.Group("all", world.AllRanks(), "comm"));
                 Stream& stream = world.context().SideStream("comm");
                 const Tensor x = Zeros({kCount});
                 const auto reduce = [&] {
                   return AllReduce(*all, x.raw_data(), kCount, kFloat32,
                                    ReduceOp::kSum, stream, "sum");
                 };
                 const auto me = static_cast<size_t>(world.rank());
                 for (int i = 0; i < 3; ++i) CH_RETURN_IF_ERROR(reduce());
                 CH_RETURN_IF_ERROR(all->Exchange("", "before").status());
                 before[me] = emulation::CountsOfRuntime();
                 CH_RETURN_IF_ERROR(all->Exchange("", "counted").status());
                 CH_RETURN_IF_ERROR(reduce());
                 CH_RETURN_IF_ERROR(all->Exchange("", "after").status());
                 after[me] = emulation::CountsOfRuntime();
                 // No rank continues before all have counted.
                 return all->Exchange("", "counted").status();
               },
               {.backends = OnCuda(kRanks, 2)});
  ASSERT_TRUE(status.ok()) << status;
  for (size_t r = 0; r < kRanks; ++r) {
    // Of all ranks: a sum of its piece, and copies of the others' pieces.
    EXPECT_EQ(after[r].kernels - before[r].kernels, kRanks * kRanks) << r;
    EXPECT_EQ(after[r].synchronizations, before[r].synchronizations) << r;
    EXPECT_EQ(after[r].allocations, before[r].allocations) << r;
    EXPECT_EQ(after[r].host_functions, before[r].host_functions) << r;
  }
}

TEST(LocalOnCudaTest, ReportsCollectivesInAnotherOrderAsAStall) {
  const absl::Status status =
      RunLocal(2,
               [](World& world) -> absl::Status {
                 CH_ASSIGN_OR_RETURN(auto x, world.Group("x", {0, 1}, "a"));
                 CH_ASSIGN_OR_RETURN(auto y, world.Group("y", {0, 1}, "b"));
                 Stream& a = world.context().SideStream("a");
                 Stream& b = world.context().SideStream("b");
                 if (world.rank() == 0) {
                   CH_RETURN_IF_ERROR(Barrier(*x, a, "first"));
                   return Barrier(*y, b, "second");
                 }
                 CH_RETURN_IF_ERROR(Barrier(*y, b, "second"));
                 return Barrier(*x, a, "first");
               },
               {.backends = OnCuda(2, 1)});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  for (const char* said : {"rank 0", "rank 1", "first", "second"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(said));
  }
}

TEST(LocalOnCudaTest, RefusesDevicesThatDoNotReachOneAnother) {
  const auto refusal = [](std::vector<const DeviceBackend*> backends) {
    return std::string(RunLocal(2, [](World&) { return absl::OkStatus(); },
                                {.backends = std::move(backends)})
                           .message());
  };
  const DeviceBackend* const cuda = *CudaBackend(0);
  for (const DeviceBackend* const other :
       {static_cast<const DeviceBackend*>(nullptr), &CpuBackend()}) {
    EXPECT_THAT(refusal({cuda, other}),
                HasSubstr("ranks that are threads read one another's memory, "
                          "and "));
  }
}

}  // namespace
}  // namespace crosshatch
