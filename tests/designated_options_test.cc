// SPDX-License-Identifier: Apache-2.0

// Options with designated initializers that omit members. Such code must
// compile without warnings under -Wextra, so every member needs a default
// initializer.
#pragma GCC diagnostic error "-Wmissing-field-initializers"

#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/local_map.h"
#include "crosshatch/fsdp/custom_comm.h"
#include "crosshatch/fsdp/policy.h"
#include "crosshatch/nn/distribute_module.h"
#include "crosshatch/nn/layers/conv.h"
#include "crosshatch/nn/layers/mixture_of_experts.h"
#include "crosshatch/nn/loss.h"
#include "crosshatch/nn/models/llama_config.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/nn/optim/ema.h"
#include "crosshatch/nn/optim/grad_scaler.h"
#include "crosshatch/nn/optim/lion.h"
#include "crosshatch/nn/optim/sgd.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/ops/attention.h"
#include "crosshatch/tensor/ops/conv.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/expert_parallel.h"
#include "crosshatch/tp/parallel_style.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

TEST(DesignatedOptionsTest, LeaveTheOthersAsTheyAre) {
  EXPECT_FALSE((AttentionOptions{.causal = true}).mask.defined());
  EXPECT_FALSE((BackwardOptions{.retain_graph = true}).gradient.defined());
  EXPECT_EQ((Conv2dOptions{.groups = 2}).windows.stride, (RowsCols{1, 1}));
  EXPECT_TRUE((LocalMapSpec{.redistribute_inputs = true}).inputs.empty());
  EXPECT_TRUE((JobOptions{.threads_per_rank = 1}).sinks.empty());
  EXPECT_EQ((MpiOptions{.ranks = 1}).planes, nullptr);
}

TEST(DesignatedOptionsTest, OfModulesLeaveTheOthersAsTheyAre) {
  EXPECT_FALSE((nn::LlamaConfig{.dim = 8}).bos_token.has_value());
  EXPECT_TRUE((nn::RopeScaling{.factor = 2}).long_factor.empty());
  EXPECT_FALSE(
      (nn::MixtureOfExpertsOptions{.dim = 8}).capacity_factor.has_value());
  EXPECT_EQ((nn::DistributeModuleOptions{.input = nullptr}).output, nullptr);
  EXPECT_EQ((nn::AdamWGroup{.lr_scale = 2}).has, nullptr);
  EXPECT_EQ((nn::SgdGroup{.lr_scale = 2}).has, nullptr);
  EXPECT_EQ((nn::LionGroup{.lr_scale = 2}).has, nullptr);
  EXPECT_TRUE((nn::OptimizerState{.step = 1}).tensors.empty());
  EXPECT_EQ((nn::AdamWOptions{.lr = 1}).weight_decay,
            nn::AdamWOptions().weight_decay);
  EXPECT_EQ((nn::CrossEntropyLossOptions{.ignore_index = 0}).label_smoothing,
            0);
}

TEST(DesignatedOptionsTest, OfShardingLeaveTheOthersAsTheyAre) {
  EXPECT_EQ((fsdp::FullyShardOptions{.cpu_offload = true}).extension, nullptr);
  EXPECT_FALSE((fsdp::MixedPrecisionPolicy{.param_dtype = kBFloat16})
                   .output_dtype.has_value());
  EXPECT_EQ((fsdp::CustomComm{.all_gather = nullptr}).gradient_ready, nullptr);
  EXPECT_FALSE((tp::RowwiseOptions{.use_local_output = true}).input);
  EXPECT_FALSE((tp::ParallelizeOptions{.replicate_rest = true}).source_rank);
  EXPECT_FALSE(
      (tp::PrepareInputOutputOptions{.inputs = {}}).outputs.use_local_output);
}

}  // namespace
}  // namespace crosshatch
