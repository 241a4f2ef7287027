// SPDX-License-Identifier: Apache-2.0

/// \file
/// Llama with every dtype policy of FullyShardOptions.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/extensions/dtensor_extensions.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/activation_checkpoint.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/llama_plan.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

nn::LlamaConfig Small() {
  return {.dim = 12,
          .layers = 2,
          .heads = 3,
          .kv_heads = 3,
          .head_dim = 4,
          .ffn = 10,
          .vocab = 11,
          .initializer_stddev = 0.2};
}

// The modules whose parameters stay in float32, by the suffix of their names,
// and the calls with the output dtype.
struct Policy {
  std::string in_float32;
  bool output_of_blocks = false;
  bool output_of_root = false;
  bool checkpointed = false;
};

struct Result {
  DType dtype = kFloat32;
  std::vector<float> logits;
  std::vector<std::vector<float>> gradients;
};

bool EndsWith(const std::string& name, const std::string& end) {
  return name.size() >= end.size() &&
         name.compare(name.size() - end.size(), end.size(), end) == 0;
}

// Returns rank 0's result of a forward and backward.
Result Train(const std::vector<MeshAxis>& axes, const Policy& policy) {
  Result result;
  OnMesh(axes, [&](const DeviceMesh& mesh) -> absl::Status {
    World& world = mesh.world();
    CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice("fsdp"));
    nn::Llama model(Small());
    fsdp::FullyShardOptions options;
    if (axes.size() == 2) {
      CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
      CH_RETURN_IF_ERROR(
          tp::ParallelizeModule(model, tp, tp::LlamaPlan(model.config())));
      options.extension = DTensorExtensions::Create();
    }
    options.mixed_precision.param_dtype = kBFloat16;
    if (!policy.in_float32.empty()) {
      options.mixed_precision.param_dtype_override =
          [&](const nn::Parameter& p) -> std::optional<DType> {
        if (EndsWith(p.name(), policy.in_float32)) return kFloat32;
        return std::nullopt;
      };
    }
    const auto shard = [&](nn::Module& module, bool casts) {
      options.mixed_precision.output_dtype =
          casts ? std::optional<DType>(kFloat32) : std::nullopt;
      return fsdp::FullyShard(module, fsdp, options);
    };
    for (nn::Module& block : model.blocks()) {
      if (policy.checkpointed)
        CH_RETURN_IF_ERROR(nn::CheckpointActivations(block));
      CH_RETURN_IF_ERROR(shard(block, policy.output_of_blocks));
    }
    if (policy.checkpointed)
      CH_RETURN_IF_ERROR(nn::CheckpointActivations(model));
    CH_RETURN_IF_ERROR(shard(model, policy.output_of_root));
    CH_RETURN_IF_ERROR(model.Materialize({.seed = 5}));
    // The same rows on all ranks, so only shards differ.
    const std::vector<int32_t> ids = {0, 3, 10, 7, 7, 2, 9, 4, 1, 5};
    const Tensor logits = model.Forward(FromValues<int32_t>({2, 5}, ids));
    CH_RETURN_IF_ERROR(Backward(Sum(Tanh(logits))));
    const std::vector<float> values =
        ToDType(FullTensor(logits), kFloat32).ToVector<float>();
    std::vector<std::vector<float>> gradients;
    for (nn::Parameter* p : model.Parameters()) {
      gradients.push_back(FullTensor(p->grad()).ToVector<float>());
    }
    if (world.rank() == 0) result = {logits.dtype(), values, gradients};
    return world.context().Synchronize();
  });
  return result;
}

double LargestOf(const std::vector<float>& values) {
  double largest = 0;
  for (const float value : values) {
    largest = std::max(largest, std::abs(double{value}));
  }
  return largest;
}

// Some 20 consecutive roundings of 2^-8 in either run, relative to the largest
// value.
void ExpectNear(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  const double bound = 40 * 0x1p-8 * std::max(LargestOf(a), LargestOf(b));
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], bound) << i;
}

const std::vector<std::vector<MeshAxis>> kMeshes = {
    {{"fsdp", 1}}, {{"fsdp", 3}}, {{"fsdp", 2}, {"tp", 2}}};

class LlamaDTypesTest : public ::testing::TestWithParam<std::string> {};

TEST_P(LlamaDTypesTest, KeepsAnyParameterWide) {
  const Result plain = Train(kMeshes[0], {});
  for (const std::vector<MeshAxis>& axes : kMeshes) {
    const Result wide = Train(axes, {.in_float32 = GetParam()});
    ExpectNear(wide.logits, plain.logits);
    ASSERT_EQ(wide.gradients.size(), plain.gradients.size());
    for (size_t i = 0; i < wide.gradients.size(); ++i) {
      ExpectNear(wide.gradients[i], plain.gradients[i]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    EachKind, LlamaDTypesTest,
    ::testing::Values("norm.weight", "input_layernorm.weight",
                      "embed_tokens.weight", "q_proj.weight", "o_proj.weight",
                      "gate_proj.weight", "down_proj.weight", "lm_head.weight",
                      "weight"),
    [](const auto& info) {
      std::string name = info.param;
      for (char& c : name) c = c == '.' ? '_' : c;
      return name;
    });

// One options value may serve all calls: only the model's outputs are cast,
// with the bits of setting it on the root alone.
TEST(LlamaDTypesTest, CastsOutputsOfTheOutermostModule) {
  CH_SKIP_ON(TestEngine::kMpi, "reads what other ranks wrote to its variables");
  for (const std::vector<MeshAxis>& axes : kMeshes) {
    const Result none = Train(axes, {});
    EXPECT_EQ(none.dtype, kBFloat16);
    for (const bool checkpointed : {false, true}) {
      for (const std::string in_float32 : {"", "norm.weight"}) {
        const Result root = Train(axes, {.in_float32 = in_float32,
                                         .output_of_root = true,
                                         .checkpointed = checkpointed});
        const Result all = Train(axes, {.in_float32 = in_float32,
                                        .output_of_blocks = true,
                                        .output_of_root = true,
                                        .checkpointed = checkpointed});
        EXPECT_EQ(root.dtype, kFloat32);
        EXPECT_EQ(all.dtype, kFloat32);
        EXPECT_EQ(all.logits, root.logits);
        EXPECT_EQ(all.gradients, root.gradients);
        if (in_float32.empty()) {
          EXPECT_EQ(root.logits, none.logits);
        }
        // Set on blocks only: the head receives their outputs.
        const Result blocks = Train(axes, {.in_float32 = in_float32,
                                           .output_of_blocks = true,
                                           .checkpointed = checkpointed});
        ExpectNear(blocks.logits, root.logits);
      }
    }
  }
}

}  // namespace
}  // namespace crosshatch
