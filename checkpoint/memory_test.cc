// SPDX-License-Identifier: Apache-2.0

/// \file
/// Compares the memory that saving and loading need in addition to the state
/// with formulas. The state is one large tensor and little else. Counts the
/// ranks' allocators and every `new` of the process, which all ranks share.

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/async_save.h"
#include "crosshatch/checkpoint/checkpoint.h"
#include "crosshatch/checkpoint/file_io.h"
#include "crosshatch/checkpoint/huggingface.h"
#include "crosshatch/checkpoint/offline.h"
#include "crosshatch/checkpoint/save_job.h"
#include "crosshatch/checkpoint/weight_names.h"
#include "crosshatch/comm/all_ranks.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/full_state.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"
#include "gtest/gtest.h"

namespace {

std::atomic<int64_t> heap{0};
std::atomic<int64_t> heap_peak{0};

void* Counted(void* block) {
  if (block == nullptr) throw std::bad_alloc();
  const int64_t now = heap += static_cast<int64_t>(malloc_usable_size(block));
  int64_t peak = heap_peak;
  while (now > peak && !heap_peak.compare_exchange_weak(peak, now)) {
  }
  return block;
}

void Uncounted(void* block) {
  heap -= static_cast<int64_t>(malloc_usable_size(block));
  std::free(block);
}

}  // namespace

void* operator new(size_t bytes) { return Counted(std::malloc(bytes)); }
void* operator new[](size_t bytes) { return Counted(std::malloc(bytes)); }
void operator delete(void* block) noexcept { Uncounted(block); }
void operator delete[](void* block) noexcept { Uncounted(block); }
void operator delete(void* block, size_t) noexcept { Uncounted(block); }
void operator delete[](void* block, size_t) noexcept { Uncounted(block); }

namespace crosshatch::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kRows = 1031;
constexpr int64_t kColumns = 1021;
constexpr int64_t kWhole = kRows * kColumns * 4;
/// Allowance for names, headers and messages of all ranks.
constexpr int64_t kSmall = 384 * 1024;
/// Size of a read of each rank.
constexpr int64_t kReadAtOnce = 256 * 1024;
/// Maximal difference between an allocator's block and its requested size.
constexpr int64_t kBlock = 512;

/// Peak memory above what was allocated before.
struct Taken {
  std::vector<int64_t> of_rank = std::vector<int64_t>(4);  ///< By allocators.
  int64_t heap = 0;                                        ///< Of the process.
};

/// Measures the peak of `body` on four ranks that each have a shard of a large
/// Linear.
template <typename Body>
Taken Measure(const Body& body) {
  Taken taken;
  OnMesh({{"fsdp", 2}, {"tp", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
    nn::Linear model(kColumns, kRows, {.bias = false});
    model.NamedParameters();
    CH_ASSIGN_OR_RETURN(
        const Layout layout,
        Layout::FromPlacements(mesh.layout(), 2, {Shard(0), Shard(1)}));
    model.weight()->set_data(MakeDTensor(
        Full(layout.LocalShape({kRows, kColumns}, *mesh.coordinate()), 0.5),
        mesh, layout, {kRows, kColumns}));
    nn::StateDict state;
    CH_RETURN_IF_ERROR(state.Add("w", model.weight()->data()));
    RankContext& context = mesh.world().context();
    CH_RETURN_IF_ERROR(context.Synchronize());
    // All ranks have their initial memory.
    CH_RETURN_IF_ERROR(
        (*AllRanks(mesh.world()))->Exchange("", "begin").status());
    context.allocator().ResetPeaks();
    const int64_t before = context.allocator().stats().current_total;
    if (mesh.world().rank() == 0) heap_peak = heap.load();
    const int64_t heap_before = heap_peak;
    CH_RETURN_IF_ERROR(
        (*AllRanks(mesh.world()))->Exchange("", "measure").status());
    CH_RETURN_IF_ERROR(body(mesh.world(), model, state));
    taken.of_rank[static_cast<size_t>(mesh.world().rank())] =
        context.allocator().stats().peak_total - before;
    if (mesh.world().rank() == 0) taken.heap = heap_peak - heap_before;
    return absl::OkStatus();
  });
  return taken;
}

int64_t Most(const Taken& taken) {
  return *std::max_element(taken.of_rank.begin(), taken.of_rank.end());
}

TEST(MemoryTest, SavingAndLoadingTakeNone) {
  const std::string dir = FreshDir("state");
  const Taken saving =
      Measure([&](World& world, nn::Linear&, nn::StateDict& state) {
        return SaveCheckpoint(world, state, dir);
      });
  EXPECT_EQ(Most(saving), 0);
  EXPECT_LT(saving.heap, kSmall);
  const Taken loading =
      Measure([&](World& world, nn::Linear&, nn::StateDict& state) {
        return LoadCheckpoint(world, state, dir);
      });
  EXPECT_EQ(Most(loading), 0);
  EXPECT_LT(loading.heap, kSmall + 4 * kReadAtOnce);
}

TEST(MemoryTest, AsyncSaveCopiesOnlyWrittenCells) {
  CH_SKIP_ON(Device::Kind::kCuda, "measures the host's memory");
  const std::string dir = FreshDir("async");
  const Taken saving = Measure(
      [&](World& world, nn::Linear&, nn::StateDict& state) -> absl::Status {
        AsyncCheckpointer saver(world);
        // The second save reuses the memory of the first.
        for (int i = 0; i < 2; ++i) {
          CH_RETURN_IF_ERROR(saver.Save(state, dir, /*overwrite=*/true));
        }
        return saver.Wait();
      });
  EXPECT_EQ(Most(saving), 0);
  EXPECT_GE(saving.heap, kWhole);
  EXPECT_LT(saving.heap, kWhole + kSmall);
}

// Elements that the host cannot address are copied one piece at a time, also
// those that both ranks have and compare.
TEST(MemoryTest, SavingFromADeviceNeedsOnePiece) {
  const std::string dir = FreshDir("pieces");
  RunRanks(2, [&](World& world) -> absl::Status {
    nn::StateDict state;
    for (const char* name : {"a", "b", "c"}) {
      CH_RETURN_IF_ERROR(state.Add(name, Full({3 * kMaxPieceBytes / 8}, 0.5)));
    }
    RankContext& context = world.context();
    CH_RETURN_IF_ERROR(context.Synchronize());
    context.host_allocator().ResetPeaks();
    context.device_allocator().ResetPeaks();
    const int64_t on_host = context.host_allocator().stats().current_total;
    const int64_t on_device = context.device_allocator().stats().current_total;
    CH_RETURN_IF_ERROR(SaveCheckpoint(world, state, dir));
    const int64_t host = context.host_allocator().stats().peak_total - on_host;
    CH_EXPECT_EQ(context.device_allocator().stats().peak_total, on_device);
    // A rank writes elements that the host can address in one round.
    CH_ASSIGN_OR_RETURN(const auto job,
                        SaveJob::Prepare(world, state, dir + "_rounds", {}));
    job->GiveUp();
    if (world.device().is_cpu()) {
      CH_EXPECT_EQ(host, 0);
      CH_EXPECT_EQ(job->rounds(), 1u);
    } else {
      CH_EXPECT_GT(host, 0);
      CH_EXPECT_LE(host, kMaxPieceBytes);
      CH_EXPECT_GT(job->rounds(), 1u);
    }
    return absl::OkStatus();
  });
}

// All tensors here are read in one batch.
TEST(MemoryTest, LoadingToADeviceNeedsOneBlock) {
  const std::string dir = FreshDir("read_at_once");
  constexpr int64_t kElements = 3 * kMaxPieceBytes / 8;
  RunRanks(2, [&](World& world) -> absl::Status {
    nn::StateDict state;
    for (const char* name : {"a", "b"}) {
      CH_RETURN_IF_ERROR(state.Add(name, Full({kElements}, 0.5)));
    }
    CH_RETURN_IF_ERROR(SaveCheckpoint(world, state, dir));
    RankContext& context = world.context();
    context.host_allocator().ResetPeaks();
    context.device_allocator().ResetPeaks();
    const int64_t on_host = context.host_allocator().stats().current_total;
    const int64_t on_device = context.device_allocator().stats().current_total;
    CH_RETURN_IF_ERROR(LoadCheckpoint(world, state, dir));
    const int64_t host = context.host_allocator().stats().peak_total - on_host;
    CH_EXPECT_EQ(context.device_allocator().stats().peak_total, on_device);
    if (world.device().is_cpu()) {
      CH_EXPECT_EQ(host, 0);
    } else {
      CH_EXPECT_GE(host, kElements * 4);
      CH_EXPECT_LE(host, 2 * (kElements * 4 + kBlock));
    }
    return absl::OkStatus();
  });
}

Taken Visit(nn::StateHolder holder) {
  return Measure([&](World& world, nn::Linear&, nn::StateDict& state) {
    return nn::VisitFullState(world, state, holder,
                              [](const std::string&, const nn::StateValue&) {
                                return absl::OkStatus();
                              });
  });
}

TEST(MemoryTest, GathersTensorsOnTheFirstRankOnly) {
  const Taken visiting = Visit(nn::StateHolder::kFirstRank);
  // Parts from other ranks are received in place.
  EXPECT_GE(visiting.of_rank[0], kWhole);
  EXPECT_LE(visiting.of_rank[0], kWhole + kBlock);
  for (size_t rank = 1; rank < 4; ++rank) {
    EXPECT_LE(visiting.of_rank[rank], kBlock) << rank;
  }
  EXPECT_LT(visiting.heap, kSmall);
}

TEST(MemoryTest, GathersTensorsOnEveryRankOnce) {
  const Taken visiting = Visit(nn::StateHolder::kEveryRank);
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_GE(visiting.of_rank[rank], kWhole) << rank;
    EXPECT_LE(visiting.of_rank[rank], kWhole + kBlock) << rank;
  }
  EXPECT_LT(visiting.heap, kSmall);
}

TEST(MemoryTest, HuggingFaceLoadingNeedsOneBlock) {
  const std::string dir = FreshDir("hf");
  const WeightNames names = {.rules = {{"*", "*"}}};
  const Taken saving =
      Measure([&](World& world, nn::Linear& model, nn::StateDict&) {
        return SaveWeights(world, model, dir, names, "{}");
      });
  EXPECT_EQ(Most(saving), 0);
  EXPECT_LT(saving.heap, kSmall);
  const Taken loading = Measure([&](World&, nn::Linear& model, nn::StateDict&) {
    return LoadWeights(model, dir, names);
  });
  EXPECT_EQ(Most(loading), 0);
  EXPECT_LT(loading.heap, kSmall + 4 * kReadAtOnce);
}

// A tensor of three and a half blocks, cut into four cells.
TEST(MemoryTest, TheToolNeedsOneBlock) {
  const std::string dir = FreshDir("tool");
  constexpr int64_t kColumnsOfFour = 2048;
  constexpr int64_t kRowsOfFour = 7 * kBlockBytes / 2 / (4 * kColumnsOfFour);
  OnMesh({{"fsdp", 2}, {"tp", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(
        const Layout layout,
        Layout::FromPlacements(mesh.layout(), 2, {Shard(0), Shard(1)}));
    const Shape sizes = {kRowsOfFour, kColumnsOfFour};
    nn::StateDict state;
    CH_RETURN_IF_ERROR(state.Add(
        "model.w",
        MakeDTensor(Full(layout.LocalShape(sizes, *mesh.coordinate()), 0.5),
                    mesh, layout, sizes)));
    return SaveCheckpoint(mesh.world(), state, dir);
  });
  const auto taken = [](const auto& run) {
    heap_peak = heap.load();
    const int64_t before = heap_peak;
    const absl::Status status = run();
    EXPECT_TRUE(status.ok()) << status;
    return heap_peak - before;
  };
  EXPECT_LT(taken([&] { return Verify(dir).status(); }), kSmall);
  const auto expect_blocks = [](int64_t bytes, int64_t blocks) {
    EXPECT_GE(bytes, blocks * kBlockBytes);
    EXPECT_LT(bytes, blocks * kBlockBytes + kSmall);
  };
  expect_blocks(taken([&] { return Reshard(dir, FreshDir("tool_3"), 3); }), 1);
  expect_blocks(
      taken([&] { return ConvertToHuggingFace(dir, FreshDir("tool_hf")); }), 1);
  expect_blocks(taken([&] {
                  return Diff(dir, ::testing::TempDir() + "tool_3").status();
                }),
                2);
}

// Converts elements of the rank's shard only.
TEST(MemoryTest, HuggingFaceInAnotherDtypeTakesAPart) {
  const std::string dir = FreshDir("hf_bf16");
  const WeightNames names = {.rules = {{"*", "*"}}};
  const Taken saving = Measure([&](World& world, nn::Linear& model,
                                   nn::StateDict&) {
    return SaveWeights(world, model, dir, names, "{}", {.dtype = kBFloat16});
  });
  constexpr int64_t kPart = (kRows + 1) / 2 * ((kColumns + 1) / 2) * 2;
  EXPECT_GE(Most(saving), kPart);
  EXPECT_LE(Most(saving), kPart + kBlock);
  EXPECT_LT(saving.heap, kSmall);
}

}  // namespace
}  // namespace crosshatch::checkpoint
