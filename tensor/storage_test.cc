// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/storage.h"

#include <memory>
#include <utility>

#include "crosshatch/tensor/backends/cpu/cpu_backend.h"
#include "crosshatch/tensor/backends/cpu/cpu_stream.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

class StorageTest : public ::testing::Test {
 protected:
  Block Lease(int64_t bytes) {
    return allocator_->Allocate(bytes, MemoryClass::kGatheredParameter,
                                *compute_);
  }

  KernelContext context_;
  std::unique_ptr<Stream> compute_ = MakeInlineStream("compute", &context_);
  std::unique_ptr<Allocator> allocator_ = MakeCpuAllocator();
};

TEST_F(StorageTest, OwnsTheMemoryItIsMadeWith) {
  Block block = Lease(12);
  std::byte* const data = block.data();
  {
    Storage storage(std::move(block), Device::Cpu());
    EXPECT_TRUE(storage.attached());
    EXPECT_EQ(storage.data(), data);
    EXPECT_EQ(storage.bytes(), 12);
    EXPECT_EQ(storage.device(), Device::Cpu());
    EXPECT_EQ(allocator_->stats().current_total, 12);
  }
  EXPECT_EQ(allocator_->stats().current_total, 0);
}

TEST_F(StorageTest, GetsAndGivesUpMemory) {
  Storage storage(12, "layers.0.wq.weight");
  EXPECT_FALSE(storage.attached());
  EXPECT_EQ(storage.device(), Device::Meta());
  EXPECT_EQ(storage.bytes(), 12);
  for (int round = 0; round < 2; ++round) {
    storage.Attach(Lease(16), Device::Cpu());
    EXPECT_TRUE(storage.attached());
    EXPECT_NE(storage.data(), nullptr);
    EXPECT_EQ(storage.device(), Device::Cpu());
    Block block = storage.Detach();
    EXPECT_EQ(block.bytes(), 16);
    EXPECT_FALSE(storage.attached());
    EXPECT_EQ(storage.device(), Device::Meta());
  }
  EXPECT_EQ(allocator_->stats().current_total, 0);
}

TEST_F(StorageTest, HasNoAddressInADryRun) {
  auto accounting = MakeAccountingAllocator();
  Storage storage(12, "w");
  storage.Attach(
      accounting->Allocate(12, MemoryClass::kGatheredParameter, *compute_),
      Device::Meta());
  EXPECT_TRUE(storage.attached());
  EXPECT_EQ(storage.data(), nullptr);
}

TEST_F(StorageTest, CountsWrites) {
  Storage storage(12, "w");
  EXPECT_EQ(storage.version(), 0u);
  storage.BumpVersion();
  EXPECT_EQ(storage.version(), 1u);
}

using StorageDeathTest = StorageTest;

TEST_F(StorageDeathTest, NamesTheOwnerOfDetachedMemory) {
  Storage storage(12, "layers.0.wq.weight");
  EXPECT_DEATH(storage.data(),
               "the memory of layers.0.wq.weight \\(12 bytes\\) was touched "
               "while it is not attached");
  EXPECT_DEATH(storage.Detach(), "memory of layers.0.wq.weight.*has none");
  EXPECT_DEATH(storage.Attach(Lease(11), Device::Cpu()),
               "11 vs 12\\) memory attached to layers.0.wq.weight");
  EXPECT_DEATH(storage.CheckAttached(), "memory of layers.0.wq.weight");
  storage.Attach(Lease(12), Device::Cpu());
  storage.CheckAttached();
  EXPECT_DEATH(storage.Attach(Lease(12), Device::Cpu()),
               "layers.0.wq.weight, which has memory already");
  storage.Detach();
  EXPECT_DEATH(storage.data(), "layers.0.wq.weight");
}

}  // namespace
}  // namespace crosshatch
