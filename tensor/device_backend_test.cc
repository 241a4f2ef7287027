// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/device_backend.h"

#include <memory>
#include <string>
#include <vector>

#include "crosshatch/tensor/backends/cpu/cpu_backend.h"
#include "crosshatch/tensor/backends/reference/reference_backend.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/host_access.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Has the CPU's streams and memory, and the kernels it is made with.
class Partial final : public DeviceBackend {
 public:
  explicit Partial(const KernelTable& kernels)
      : DeviceBackend(Device::Cuda(1), kernels, /*host_addressable=*/true) {}
  std::unique_ptr<Stream> MakeStream(const std::string& name, StreamRole role,
                                     const RankParts& rank) const override {
    return CpuBackend().MakeStream(name, role, rank);
  }
  std::unique_ptr<Allocator> MakeAllocator(bool adversarial) const override {
    return CpuBackend().MakeAllocator(adversarial);
  }
  std::unique_ptr<Allocator> MakeHostAllocator(
      bool adversarial) const override {
    return CpuBackend().MakeHostAllocator(adversarial);
  }
};

TEST(KernelTableTest, KnowsWhatItLacks) {
  EXPECT_THAT(MissingKernels(CpuBackend().kernels()), IsEmpty());
  EXPECT_THAT(MissingKernels(ReferenceBackend().kernels()), IsEmpty());
  KernelTable table = CpuBackend().kernels();
  table.gather = nullptr;
  table.copy = nullptr;
  EXPECT_THAT(MissingKernels(table), ElementsAre("copy", "gather"));
}

TEST(DeviceBackendDeathTest, RefusesATableWithGaps) {
  KernelTable table = CpuBackend().kernels();
  table.sort = nullptr;
  table.rope = nullptr;
  EXPECT_DEATH(Partial{table}, "cuda:1 lacks the kernels rope, sort");
}

TEST(DeviceBackendTest, ARankComputesOnItsBackend) {
  KernelTable table = CpuBackend().kernels();
  table.fill = [](const FillArgs& args, KernelContext&) {
    *static_cast<float*>(args.out.data) = 42;
  };
  const Partial backend(table);
  RankContext rank({.backend = &backend});
  const RankContextScope scope(&rank);
  EXPECT_EQ(rank.device(), Device::Cuda(1));
  const Tensor x = Zeros({1});
  EXPECT_EQ(x.device(), Device::Cuda(1));
  EXPECT_THAT(x.ToVector<float>(), ElementsAre(42));
}

TEST(DeviceBackendTest, TheCpuIsWhereNothingElseIsSaid) {
  RankContext rank({});
  EXPECT_EQ(&rank.backend(), &CpuBackend());
  EXPECT_EQ(rank.device(), Device::Cpu());
  RankContext dry({.dry_run = true});
  EXPECT_EQ(&dry.backend(), &CpuBackend());
  EXPECT_EQ(dry.device(), Device::Meta());
}

// A dry run accounts what its backend would take, not what the CPU would.
TEST(DeviceBackendTest, ADryRunIsOfItsBackend) {
  RankContext rank({.backend = &ReferenceBackend(), .dry_run = true});
  EXPECT_EQ(&rank.kernels(), &ReferenceBackend().kernels());
  EXPECT_EQ(rank.allocator().device(), Device::Meta());
}

class HostAccessTest : public ::testing::TestWithParam<const DeviceBackend*> {};

TEST_P(HostAccessTest, ReadsAndWritesWhereverMemoryIs) {
  for (const uint64_t seed : {0, 1}) {
    RankContext rank({.backend = GetParam(), .adversarial_seed = seed});
    const RankContextScope scope(&rank);
    const Tensor x = FromValues<float>({2, 3}, {1, 2, 3, 4, 5, 6});
    EXPECT_EQ(x.device(), GetParam()->device());
    EXPECT_THAT(x.ToVector<float>(), ElementsAre(1, 2, 3, 4, 5, 6));
    EXPECT_THAT(Transpose(x, 0, 1).ToVector<float>(),
                ElementsAre(1, 4, 2, 5, 3, 6));
    EXPECT_THAT(Slice(x, 1, 1, 3).ToVector<float>(), ElementsAre(2, 3, 5, 6));
    EXPECT_THAT(ToDType(x, kBFloat16).ToVector<float>(),
                ElementsAre(1, 2, 3, 4, 5, 6));
    EXPECT_THAT(Zeros({0, 3}).ToVector<float>(), IsEmpty());
    // From the last element to the first.
    const Tensor back = MakeView(x.storage(), 5, {6}, {-1}, kFloat32);
    EXPECT_THAT(back.ToVector<float>(), ElementsAre(6, 5, 4, 3, 2, 1));
    WriteFromHost(Select(x, 0, 1), [](void* to) {
      for (int i = 0; i < 3; ++i) static_cast<float*>(to)[i] = 10.f * i;
    });
    EXPECT_THAT(x.ToVector<float>(), ElementsAre(1, 2, 3, 0, 10, 20));
  }
}

TEST_P(HostAccessTest, APoisonedRankWritesNothing) {
  RankContext rank({.backend = GetParam()});
  const RankContextScope scope(&rank);
  const Tensor x = Full({2}, 1);
  rank.Poison(absl::AbortedError("peer"));
  bool written = false;
  WriteFromHost(x, [&](void*) { written = true; });
  EXPECT_FALSE(written);
}

TEST_P(HostAccessTest, WhatIsOffloadedLiesInHostMemory) {
  RankContext rank({.backend = GetParam()});
  const RankContextScope scope(&rank);
  const Tensor x = FromValues<float>({3}, {1, 2, 3});
  const HostMemoryScope on_host;
  const Tensor y = Empty({3});
  EXPECT_EQ(y.device(), Device::Cpu());
  CopyInPlace(y, x);
  EXPECT_THAT(y.ToVector<float>(), ElementsAre(1, 2, 3));
  EXPECT_EQ(y.data<float>()[2], 3);
}

INSTANTIATE_TEST_SUITE_P(Backends, HostAccessTest,
                         ::testing::Values(&CpuBackend(), &ReferenceBackend(),
                                           &SharedReferenceBackend()),
                         [](const auto& info) -> std::string {
                           return info.index == 0   ? "Cpu"
                                  : info.index == 1 ? "Reference"
                                                    : "SharedReference";
                         });

}  // namespace
}  // namespace crosshatch
