// SPDX-License-Identifier: Apache-2.0

/// \file
/// The CUDA runtime calls of a training step: kernels, and none that wait or
/// allocate.

#include <cstdint>
#include <string>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/emulation/cuda_runtime.h"
#include "crosshatch/emulation/idle_runtime.h"
#include "crosshatch/extensions/dtensor_extensions.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/backends/cuda/cuda_backend.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cross_entropy.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/llama_plan.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using emulation::CountsOfRuntime;
using emulation::RuntimeCounts;

// Returns the counts between two steps of all ranks.
absl::StatusOr<RuntimeCounts> CountsBetweenSteps(Communicator& all) {
  CH_RETURN_IF_ERROR(all.Exchange("", "all have issued").status());
  const RuntimeCounts counts = CountsOfRuntime();
  CH_RETURN_IF_ERROR(all.Exchange("", "all have counted").status());
  return counts;
}

absl::Status ExpectStepsThatOnlyIssue(const DeviceMesh& mesh) {
  World& world = mesh.world();
  CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice("fsdp"));
  CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
  nn::Llama model({.dim = 8,
                   .layers = 2,
                   .heads = 2,
                   .kv_heads = 2,
                   .head_dim = 4,
                   .ffn = 6,
                   .vocab = 11});
  CH_RETURN_IF_ERROR(
      tp::ParallelizeModule(model, tp, tp::LlamaPlan(model.config())));
  const fsdp::FullyShardOptions options = {.extension =
                                               DTensorExtensions::Create()};
  for (nn::Module& block : model.blocks()) {
    CH_RETURN_IF_ERROR(fsdp::FullyShard(block, fsdp, options));
  }
  CH_RETURN_IF_ERROR(fsdp::FullyShard(model, fsdp, options));
  CH_RETURN_IF_ERROR(model.Materialize({.seed = 5}));
  nn::AdamW optimizer(model.Parameters(), {.lr = 1e-3});
  const std::vector<int32_t> ids = {0, 3, 10, 7, 7, 2, 9, 4, 1, 5};
  const Tensor tokens = FromValues<int32_t>({2, 5}, ids);
  const auto step = [&]() -> absl::Status {
    const Tensor loss = CrossEntropy(model.Forward(tokens), tokens);
    CH_RETURN_IF_ERROR(Backward(loss));
    CH_RETURN_IF_ERROR(optimizer.Step());
    optimizer.ZeroGrad();
    return absl::OkStatus();
  };
  CH_ASSIGN_OR_RETURN(auto all, world.Group("all", world.AllRanks(), "count"));
  // From the third step on, memory and events are reused.
  for (int i = 0; i < 2; ++i) CH_RETURN_IF_ERROR(step());
  for (int i = 0; i < 3; ++i) {
    CH_ASSIGN_OR_RETURN(const RuntimeCounts before, CountsBetweenSteps(*all));
    CH_RETURN_IF_ERROR(step());
    CH_ASSIGN_OR_RETURN(const RuntimeCounts after, CountsBetweenSteps(*all));
    CH_EXPECT_GT(after.kernels, before.kernels + 400);
    CH_EXPECT_EQ(after.synchronizations, before.synchronizations);
    CH_EXPECT_EQ(after.allocations, before.allocations);
    CH_EXPECT_EQ(after.host_functions, before.host_functions);
    CH_EXPECT_EQ(after.copies, before.copies) << "between host and device";
  }
  return world.context().Synchronize();
}

TEST(CudaStepsTest, AStepIssuesAndWaitsForNothing) {
  OnMesh({{"fsdp", 2}, {"tp", 2}}, ExpectStepsThatOnlyIssue,
         {.backends = {*CudaBackend(0)}});
}

// The number of launches of the model in benchmarks/cuda_launch_benchmark.cc,
// which docs/cuda_kernels.md compares with PyTorch's. Each launch costs host
// time; update the page if the number changes. Nothing is allocated after the
// second step.
TEST(CudaStepsTest, AStepOfOneRankTakesFewLaunches) {
  RankContext context({.backend = *CudaBackend(0)});
  const RankContextScope scope(&context);
  nn::Llama model({.dim = 64,
                   .layers = 4,
                   .heads = 4,
                   .kv_heads = 4,
                   .head_dim = 16,
                   .ffn = 176,
                   .vocab = 256});
  ASSERT_TRUE(model.Materialize({.seed = 5}).ok());
  nn::AdamW optimizer(model.Parameters(), {.lr = 1e-3});
  const std::vector<int32_t> ids(64, 3);
  const Tensor tokens = FromValues<int32_t>({1, 64}, ids);
  const emulation::IdleRuntime idle;
  RuntimeCounts counts[3];
  for (RuntimeCounts& count : counts) {
    const Tensor loss = CrossEntropy(model.Forward(tokens), tokens);
    ASSERT_TRUE(Backward(loss).ok());
    ASSERT_TRUE(optimizer.Step().ok());
    optimizer.ZeroGrad();
    count = CountsOfRuntime();
  }
  EXPECT_EQ(counts[2].kernels - counts[1].kernels, 237);
  EXPECT_EQ(counts[2].synchronizations, counts[1].synchronizations);
  EXPECT_EQ(counts[2].allocations, counts[1].allocations);
}

}  // namespace
}  // namespace crosshatch
