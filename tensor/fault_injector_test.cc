// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstdint>
#include <string>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/backends/cpu/cpu_backend.h"
#include "crosshatch/tensor/backends/cuda/cuda_backend.h"
#include "crosshatch/tensor/device_backend.h"
#include "crosshatch/tensor/fault_injector_testutil.h"
#include "crosshatch/tensor/rank_context.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

constexpr uint64_t kSeeds = 1000;

struct Outcome {
  IssueLog log;
  int64_t overlaps = 0;
  int wrong = 0;
};

// The streams of both are queues, and on CUDA tasks run when they are issued,
// but those of the host.
class FaultInjectorTest : public testing::TestWithParam<Device::Kind> {
 protected:
  static const DeviceBackend& Backend() {
    if (GetParam() == Device::Kind::kCpu) return CpuBackend();
    const auto cuda = CudaBackend(0);
    CH_CHECK_OK(cuda.status());
    return **cuda;
  }

  static Outcome RunWith(Fault fault, uint64_t seed);
  static uint64_t SeedThatFinds(Fault fault);
};

// The host writes numbers on one stream and reads them on another, in memory
// that it reaches whatever the device.
Outcome FaultInjectorTest::RunWith(Fault fault, uint64_t seed) {
  FaultInjector injector(fault);
  std::atomic<int> wrong = 0;
  {
    RankContext rank({.backend = &Backend(),
                      .adversarial_seed = seed,
                      .sink = &injector,
                      .decorator = &injector});
    Stream& compute = rank.compute_stream();
    Stream& side = rank.SideStream("side");
    const auto lease = [&] {
      return rank.host_allocator().Allocate(64, MemoryClass::kActivation,
                                            compute);
    };
    for (int round = 0; round < 10; ++round) {
      const std::string name = std::to_string(round);
      injector.Write({EventKind::kFsdp, "round", &name, nullptr});
      Block block = lease();
      auto* const value = reinterpret_cast<int*>(block.data());
      compute.LaunchHost([=](KernelContext&) { *value = round; });
      Block other = lease();
      auto* const scratch = reinterpret_cast<int*>(other.data());
      compute.LaunchHost([=](KernelContext&) { *scratch = -1; });
      side.Wait(compute.Record());
      side.LaunchHost(
          [=, &wrong](KernelContext&) { wrong += *value != round; });
      side.Wait(compute.Record());  // Nothing new.
      block.UsedOn(side);
    }
    EXPECT_TRUE(rank.Synchronize().ok());
  }
  return {injector.log(), injector.overlaps(), wrong};
}

// The seed that finds the fault; 0 if none does.
uint64_t FaultInjectorTest::SeedThatFinds(Fault fault) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    if (RunWith(fault, seed).wrong > 0) return seed;
  }
  return 0;
}

TEST_P(FaultInjectorTest, ChangesNothingByDefault) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Outcome run = RunWith({}, seed);
    EXPECT_EQ(run.wrong, 0);
    EXPECT_EQ(run.overlaps, 0);
  }
}

TEST_P(FaultInjectorTest, FindsADroppedWaitUnlessAnotherCoversIt) {
  const IssueLog log = RunWith({}, 1).log;
  int covered = 0;
  for (size_t i = 0; i < log.waits.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    if (log.waits[i].where != "round 5") continue;
    const Fault fault = {Fault::Kind::kDropWait, index};
    if (log.IsCovered(index)) {
      ++covered;
      EXPECT_EQ(log.DescribeWait(index), "wait " + std::to_string(i) +
                                             ": side for compute, after "
                                             "'round 5'");
      for (uint64_t seed = 1; seed <= 20; ++seed) {
        EXPECT_EQ(RunWith(fault, seed).wrong, 0) << log.DescribeWait(index);
      }
    } else {
      EXPECT_NE(SeedThatFinds(fault), 0u) << log.DescribeWait(index);
    }
  }
  EXPECT_EQ(covered, 1);
}

TEST_P(FaultInjectorTest, ReportsAWrongLease) {
  const IssueLog log = RunWith({}, 1).log;
  int uses = 0;
  for (size_t i = 0; i < log.leases.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    if (log.leases[i].where != "round 5") continue;
    SCOPED_TRACE(log.DescribeLease(index));
    EXPECT_TRUE(log.NextLeaseIsOrdered(index));
    if (!log.leases[i].used_elsewhere) continue;
    ++uses;
    EXPECT_NE(SeedThatFinds({Fault::Kind::kWrongStream, index}), 0u);
    const Fault forgetful = {Fault::Kind::kForgetUses, index};
    EXPECT_FALSE(RunWith(forgetful, 1).log.NextLeaseIsOrdered(index));
    EXPECT_NE(SeedThatFinds(forgetful), 0u);
    const Fault early = {Fault::Kind::kReleaseEarly, index};
    EXPECT_FALSE(RunWith(early, 1).log.NextLeaseIsOrdered(index));
    EXPECT_EQ(RunWith(early, 1).overlaps, 1);
    EXPECT_NE(SeedThatFinds(early), 0u);
  }
  EXPECT_EQ(uses, 1);
}

INSTANTIATE_TEST_SUITE_P(Devices, FaultInjectorTest,
                         testing::Values(Device::Kind::kCpu,
                                         Device::Kind::kCuda),
                         [](const auto& test) {
                           return test.param == Device::Kind::kCpu ? "cpu"
                                                                   : "cuda";
                         });

}  // namespace
}  // namespace crosshatch
