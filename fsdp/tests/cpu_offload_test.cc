// SPDX-License-Identifier: Apache-2.0

// FullyShardOptions::cpu_offload: results are bitwise equal if shards,
// gradients and optimizer state are in host memory. On the CPU that is a second
// accounted pool.

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/sharded_module.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

constexpr int kSteps = 2;

struct Case {
  std::string name = "plain";
  std::vector<MeshAxis> axes = {{"fsdp", 3}};
  FullyShardOptions options = {};
  /// Backwards per step. Each of them reduces its gradients.
  int microbatches = 1;
};

struct Bytes {
  MemoryStats device;
  MemoryStats host;
  int64_t shards = 0;
  int64_t shards_of_blocks = 0;
  int64_t copied = 0;  ///< Sum over all steps.
};

int64_t Of(const MemoryStats& stats, MemoryClass memory_class) {
  return stats.current[static_cast<size_t>(memory_class)];
}

// Returns rank 0's shards after training, and its memory between the last
// backward and step.
std::vector<std::vector<float>> Train(const Case& c, bool offload,
                                      uint64_t adversarial_seed = 0,
                                      Bytes* bytes = nullptr,
                                      LineSink* sink = nullptr) {
  std::vector<EventSink*> sinks(static_cast<size_t>(MeshAxes(c.axes).ranks()),
                                nullptr);
  sinks[0] = sink;
  std::vector<std::vector<float>> weights;
  const auto body = [&](const DeviceMesh& mesh) -> absl::Status {
    World& world = mesh.world();
    TestModel model(3, 5, 7, 3);
    FullyShardOptions options = c.options;
    options.cpu_offload = offload;
    for (auto& block : model.blocks()) {
      CH_RETURN_IF_ERROR(FullyShard(*block, mesh, options));
    }
    CH_RETURN_IF_ERROR(FullyShard(model, mesh, options));
    CH_RETURN_IF_ERROR(model.Materialize({.seed = 5}));
    nn::AdamW optimizer(model.Parameters(), {.lr = 0.01});
    for (int step = 0; step < kSteps; ++step) {
      if (sink != nullptr && world.rank() == 0) sink->Take();
      for (int i = 0; i < c.microbatches; ++i) {
        const Tensor x = SmallIntegers({4, 5}, world.rank() + 10 * i);
        CH_RETURN_IF_ERROR(
            Backward(Mean(Square(ToDType(model.Forward(x), kFloat32)))));
      }
      CH_RETURN_IF_ERROR(optimizer.Step());
      if (bytes != nullptr && world.rank() == 0) {
        bytes->device = world.context().device_allocator().stats();
        bytes->host = world.context().host_allocator().stats();
        const auto shards_of = [](nn::Module& module) {
          int64_t shards = 0;
          for (nn::Parameter* p : module.Parameters()) {
            shards += LocalTensor(p->data()).numel() * 4;
          }
          return shards;
        };
        bytes->shards = shards_of(model);
        bytes->shards_of_blocks = 0;
        for (auto& block : model.blocks()) {
          bytes->shards_of_blocks += shards_of(*block);
        }
        bytes->copied = world.context().copied_bytes();
      }
      optimizer.ZeroGrad();
    }
    for (nn::Parameter* p : model.Parameters()) {
      std::vector<float> values = LocalTensor(p->data()).ToVector<float>();
      if (world.rank() == 0) weights.push_back(std::move(values));
    }
    return world.context().Synchronize();
  };
  OnMesh(c.axes, body,
         {.sinks = sinks, .test = {.adversarial_seed = adversarial_seed}});
  return weights;
}

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::vector<Case> Cases() {
  std::vector<Case> cases = {
      {},
      {.name = "hybrid", .axes = {{"replicate", 2}, {"fsdp", 2}}},
      {.name = "one_rank", .axes = {{"fsdp", 1}}},
      {.name = "two_backwards", .microbatches = 2}};
  Case& low = cases.emplace_back(Case{.name = "bfloat16"});
  low.options.mixed_precision.param_dtype = kBFloat16;
  low.options.mixed_precision.reduce_dtype = kBFloat16;
  Case& half = cases.emplace_back(Case{.name = "reduced_in_float16"});
  half.options.mixed_precision.reduce_dtype = kFloat16;
  half.microbatches = 2;
  Case& kept = cases.emplace_back(Case{.name = "kept_gathered"});
  kept.options.reshard_after_forward = false;
  kept.options.prefetch.forward = 2;
  kept.options.shard_dim = [](const nn::Parameter& p) {
    return p.data().ndim() - 1;
  };
  return cases;
}

class CpuOffloadCaseTest : public testing::TestWithParam<Case> {};

TEST_P(CpuOffloadCaseTest, TrainsToTheSameBits) {
  const std::vector<std::vector<float>> expected = Train(GetParam(), false);
  for (uint64_t seed = 0; seed <= 3; ++seed) {
    EXPECT_EQ(Train(GetParam(), true, seed), expected) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, CpuOffloadCaseTest, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

TEST(CpuOffloadTest, KeepsNoStateOnTheDevice) {
  for (const bool offload : {false, true}) {
    Bytes bytes;
    Train({}, offload, 0, &bytes);
    const MemoryStats& holds = offload ? bytes.host : bytes.device;
    const MemoryStats& free = offload ? bytes.device : bytes.host;
    // Two moments, and gradients of all parameters.
    EXPECT_EQ(Of(holds, MemoryClass::kParameter), bytes.shards);
    EXPECT_EQ(Of(holds, MemoryClass::kGradient), bytes.shards);
    EXPECT_EQ(Of(holds, MemoryClass::kOptimizerState), 2 * bytes.shards);
    for (const MemoryClass memory_class :
         {MemoryClass::kParameter, MemoryClass::kGradient,
          MemoryClass::kOptimizerState, MemoryClass::kCommunication,
          MemoryClass::kGatheredParameter}) {
      EXPECT_EQ(Of(free, memory_class), 0) << Name(memory_class);
    }
    // Unsharded parameters are never in host memory.
    EXPECT_EQ(
        bytes.host.peak[static_cast<size_t>(MemoryClass::kGatheredParameter)],
        0);
  }
}

// Each step copies blocks to the device twice and the root once, and copies all
// gradients back.
TEST(CpuOffloadTest, CountsCopiedBytes) {
  Bytes without;
  Bytes with;
  Train({}, false, 0, &without);
  Train({}, true, 0, &with);
  EXPECT_EQ(with.copied - without.copied,
            kSteps * (with.shards_of_blocks + 2 * with.shards));
}

TEST(CpuOffloadTest, CopiesOnceForEachGatherAndReduction) {
  LineSink sink(EventKind::kFsdp);
  Train({}, true, 0, nullptr, &sink);
  const std::vector<std::string> log = sink.Take();
  const auto count = [&](const std::string& line) {
    return std::count(log.begin(), log.end(), line);
  };
  for (const char* group : {"blocks.0", "blocks.1", "blocks.2", "head"}) {
    const std::string name = group;
    EXPECT_EQ(count("copy_to_device " + name), count("unshard " + name));
    EXPECT_EQ(count("copy_to_device " + name), name == "head" ? 1 : 2);
    EXPECT_EQ(count("copy_to_host " + name), 1);
  }
}

}  // namespace
}  // namespace crosshatch::fsdp
