// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/device_backend.h"

#include <memory>
#include <string>
#include <vector>

#include "crosshatch/tensor/backends/cpu/cpu_backend.h"
#include "crosshatch/tensor/creation.h"
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
  explicit Partial(const KernelTable& kernels, bool host_addressable = true)
      : DeviceBackend(Device::Cuda(1), kernels, host_addressable) {}
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

TEST(KernelTableTest, ListsTheMissingKernels) {
  EXPECT_THAT(MissingKernels(CpuBackend().kernels()), IsEmpty());
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

TEST(DeviceBackendTest, TheCpuIsTheDefault) {
  RankContext rank({});
  EXPECT_EQ(&rank.backend(), &CpuBackend());
  EXPECT_EQ(rank.device(), Device::Cpu());
  RankContext dry({.dry_run = true});
  EXPECT_EQ(&dry.backend(), &CpuBackend());
  EXPECT_EQ(dry.device(), Device::Meta());
}

TEST(DeviceBackendTest, ADryRunIsOfItsBackend) {
  KernelTable table = CpuBackend().kernels();
  table.matmul_workspace_bytes = [](const MatMulArgs&) { return int64_t{64}; };
  const Partial backend(table);
  RankContext rank({.backend = &backend, .dry_run = true});
  EXPECT_EQ(&rank.kernels(), &backend.kernels());
  EXPECT_EQ(rank.allocator().device(), Device::Meta());
}

TEST(DeviceBackendTest, RefusesAPeerWhoseMemoryTheHostCannotAddress) {
  const Partial backend(CpuBackend().kernels(), /*host_addressable=*/false);
  EXPECT_EQ(std::string(backend.ReachPeer(CpuBackend()).message()),
            "the host cannot address the memory of cuda:1");
}

}  // namespace
}  // namespace crosshatch
