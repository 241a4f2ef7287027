// SPDX-License-Identifier: Apache-2.0

/// \file
/// With LlamaPlan, a step runs with implicit redistributions forbidden, also
/// beneath FSDP and with SplitSavedActivations for the inputs of attention and
/// MLP.

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/extensions/dtensor_extensions.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/optim/clip_grad.h"
#include "crosshatch/nn/split_saved.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/llama_plan.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

class LlamaImplicitTest
    : public ::testing::TestWithParam<std::tuple<int, int, bool>> {};

TEST_P(LlamaImplicitTest, NothingIsHidden) {
  const auto& [fsdp_ranks, tp_ranks, bfloat16] = GetParam();
  OnMesh(
      {{"fsdp", fsdp_ranks}, {"tp", tp_ranks}},
      [&](const DeviceMesh& mesh) -> absl::Status {
        CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
        CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice("fsdp"));
        nn::Llama model(
            {.dim = 8, .layers = 2, .heads = 2, .ffn = 12, .vocab = 11});
        CH_RETURN_IF_ERROR(
            tp::ParallelizeModule(model, tp, tp::LlamaPlan(model.config())));
        if (mesh.size(0) > 1) {
          fsdp::FullyShardOptions options = {.extension =
                                                 DTensorExtensions::Create()};
          if (bfloat16) {
            options.mixed_precision = {.param_dtype = kBFloat16,
                                       .reduce_dtype = kFloat32};
          }
          for (nn::Module& block : model.blocks()) {
            CH_RETURN_IF_ERROR(fsdp::FullyShard(block, fsdp, options));
          }
          CH_RETURN_IF_ERROR(fsdp::FullyShard(model, fsdp, options));
        }
        CH_RETURN_IF_ERROR(model.Materialize({.seed = 7}));
        const ForbidImplicitRedistribution forbid;
        const Tensor ids =
            FromValues<int32_t>({2, 5}, {0, 3, 10, 7, 7, 2, 9, 4, 1, 5});
        // The second iteration adds to existing gradients.
        for (int i = 0; i < 2; ++i) {
          CH_RETURN_IF_ERROR(Backward(CrossEntropy(model.Forward(ids), ids)));
        }
        for (nn::Parameter* p : model.Parameters()) {
          CH_EXPECT_EQ(LayoutOf(p->grad()).ToString(),
                       LayoutOf(p->data()).ToString())
              << p->name();
        }
        return nn::ClipGradNorm(model.Parameters(), 1.0f).status();
      });
}

INSTANTIATE_TEST_SUITE_P(
    All, LlamaImplicitTest,
    ::testing::Values(std::tuple(1, 2, false), std::tuple(1, 3, false),
                      std::tuple(2, 2, false), std::tuple(2, 2, true)),
    [](const auto& info) {
      return absl::StrCat("fsdp", std::get<0>(info.param), "_tp",
                          std::get<1>(info.param),
                          std::get<2>(info.param) ? "_bf16" : "");
    });

// The gradients of a step, and the bytes that the graph keeps between forward
// and backward.
struct Outcome {
  std::vector<std::vector<float>> gradients;
  int64_t kept_bytes = 0;
};

absl::StatusOr<Outcome> StepOf(const DeviceMesh& mesh, bool splits,
                               bool shards) {
  CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
  CH_ASSIGN_OR_RETURN(const DeviceMesh data, mesh.Slice("data"));
  nn::Llama model({.dim = 8, .layers = 2, .heads = 2, .ffn = 12, .vocab = 11});
  CH_RETURN_IF_ERROR(
      tp::ParallelizeModule(model, tp, tp::LlamaPlan(model.config())));
  const fsdp::FullyShardOptions options = {
      .reshard_after_forward = false, .extension = DTensorExtensions::Create()};
  for (nn::LlamaBlock& block : model.blocks()) {
    if (splits) {
      CH_RETURN_IF_ERROR(nn::SplitSavedActivations(block, tp));
    }
    if (shards) CH_RETURN_IF_ERROR(fsdp::FullyShard(block, data, options));
  }
  if (shards) CH_RETURN_IF_ERROR(fsdp::FullyShard(model, data, options));
  CH_RETURN_IF_ERROR(model.Materialize({.seed = 7}));
  // Different tokens on each data-parallel rank.
  std::vector<int32_t> ids = {0, 3, 10, 7, 7, 2, 9, 4, 1, 5};
  for (int32_t& id : ids) id = (id + 2 * *data.index(0)) % 11;
  const Tensor tokens = FromValues<int32_t>({2, 5}, ids);
  Allocator& allocator = RankContext::Current().allocator();
  Outcome outcome;
  for (int i = 0; i < 2; ++i) {
    const Tensor loss = CrossEntropy(model.Forward(tokens), tokens);
    outcome.kept_bytes =
        allocator.stats()
            .current[static_cast<size_t>(MemoryClass::kActivation)];
    CH_RETURN_IF_ERROR(Backward(loss));
  }
  for (nn::Parameter* p : model.Parameters()) {
    outcome.gradients.push_back(FullTensor(p->grad()).ToVector<float>());
  }
  return outcome;
}

class SplitSavedLlamaTest : public ::testing::TestWithParam<bool> {};

TEST_P(SplitSavedLlamaTest, KeepsTheBitsInLessMemory) {
  OnMesh({{"data", 2}, {"tp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const Outcome whole, StepOf(mesh, false, GetParam()));
    CH_ASSIGN_OR_RETURN(const Outcome split, StepOf(mesh, true, GetParam()));
    CH_EXPECT_EQ(split.gradients, whole.gradients);
    // In each block two inputs f32 [2, 5, 8] are equal on both ranks. Each rank
    // keeps 3 or 2 of the 5 positions, or half of the 8 features.
    CH_EXPECT_EQ(whole.kept_bytes - split.kept_bytes, 2 * 2 * 2 * 5 * 4 * 4);
    return absl::OkStatus();
  });
}

INSTANTIATE_TEST_SUITE_P(All, SplitSavedLlamaTest, ::testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "beneath_fsdp" : "beside_data";
                         });

}  // namespace
}  // namespace crosshatch
