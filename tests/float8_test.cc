// SPDX-License-Identifier: Apache-2.0

/// \file
/// Float8 training of a Llama on meshes.

#include "crosshatch/nn/layers/float8.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/fsdp/float8_gather.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/nn/activation_checkpoint.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/expect.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/llama_plan.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

nn::LlamaConfig Small() {
  return {.dim = 32,
          .layers = 2,
          .heads = 2,
          .kv_heads = 2,
          .head_dim = 16,
          .ffn = 48,
          .vocab = 32,
          .initializer_stddev = 0.2};
}

// The page prints the text between [program] and [/program].
// [program]
absl::Status ShardInFloat8(nn::Llama& model, const DeviceMesh& fsdp) {
  const nn::Float8Conversion conversion = nn::ConvertToFloat8Training(
      model, {.recipe = Float8Recipe::kTensorwise, .skip = {"lm_head"}});
  if (fsdp.world().rank() == 0) std::cout << conversion.ToString() << "\n";
  fsdp::FullyShardOptions options;
  options.mixed_precision.param_dtype = kBFloat16;
  options.gather_hooks = fsdp::Float8GatherHooks(model);
  for (nn::Module& block : model.blocks()) {
    CH_RETURN_IF_ERROR(fsdp::FullyShard(block, fsdp, options));
  }
  return fsdp::FullyShard(model, fsdp, options);
}
// [/program]

/// How a model is trained; nullopt: not in float8.
struct Run {
  bool perturbs = false;
  std::vector<MeshAxis> axes = {{"fsdp", 1}};
  std::optional<Float8Recipe> recipe = std::nullopt;
  bool gathers_float8 = false;
  bool recomputes = false;
  DType dtype = kFloat32;
  int steps = 1;
};

struct Result {
  std::vector<float> logits;  ///< Of the first step.
  std::vector<float> losses;
  std::vector<float> weight;  ///< One of the float8 layers, at the end.
  int64_t gathered_bytes = 0;
  int64_t max_reductions = 0;
};

bool Has(const Run& run, const char* name) {
  return std::any_of(run.axes.begin(), run.axes.end(),
                     [&](const MeshAxis& axis) { return axis.name == name; });
}

// Multiplies each element by 1 + 2^-4 or 1 - 2^-4: the largest error of a
// rounding to e4m3, with pseudo-random signs.
Tensor Perturbed(const Tensor& x, uint64_t salt) {
  std::vector<float> factors;
  for (int64_t i = 0; i < x.numel(); ++i) {
    uint64_t hash = (static_cast<uint64_t>(i) + 1) * 0x9E3779B97F4A7C15u + salt;
    hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9u;
    factors.push_back((hash >> 60) % 2 == 0 ? 1 + 0x1p-4f : 1 - 0x1p-4f);
  }
  return Mul(x, FromValues<float>(x.sizes(), factors));
}

// Perturbs both operands of all linear layers.
void Perturb(nn::Llama& model) {
  const NoGrad no_grad;
  uint64_t salt = 0;
  for (const nn::NamedModule& named : model.NamedModules()) {
    auto* const linear = dynamic_cast<nn::Linear*>(named.module);
    if (linear == nullptr) continue;
    const Tensor weight = LocalTensor(linear->weight()->data());
    CopyInPlace(weight, Perturbed(weight, ++salt));
    linear->AddPreHook([salt](nn::Module&, TensorList& inputs) {
      inputs[0] = Perturbed(inputs[0], salt << 32);
    });
  }
}

/// Trains on the same rows on all ranks, so that gradients are means of equal
/// numbers.
Result Train(const Run& run) {
  Result result;
  OnMesh(run.axes, [&](const DeviceMesh& mesh) -> absl::Status {
    World& world = mesh.world();
    nn::Llama model(Small());
    if (run.recipe.has_value()) {
      const nn::Float8Conversion made =
          nn::ConvertToFloat8Training(model, {.recipe = *run.recipe});
      CH_CHECK_EQ(made.converted.size(), 15u) << made.ToString();
    }
    if (Has(run, "tp")) {
      CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
      CH_RETURN_IF_ERROR(
          tp::ParallelizeModule(model, tp, tp::LlamaPlan(model.config())));
    }
    std::vector<std::string> data = {"fsdp"};
    if (Has(run, "replicate")) data = {"replicate", "fsdp"};
    CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice(data));
    fsdp::FullyShardOptions options;
    if (run.gathers_float8) {
      options.gather_hooks = fsdp::Float8GatherHooks(model);
    }
    if (run.dtype != kFloat32) options.mixed_precision.param_dtype = run.dtype;
    for (nn::Module& block : model.blocks()) {
      if (run.recomputes) CH_RETURN_IF_ERROR(nn::CheckpointActivations(block));
      CH_RETURN_IF_ERROR(fsdp::FullyShard(block, fsdp, options));
    }
    CH_RETURN_IF_ERROR(fsdp::FullyShard(model, fsdp, options));
    CH_RETURN_IF_ERROR(model.Materialize({.seed = 5}));
    if (run.perturbs) Perturb(model);
    nn::AdamW optimizer(model.Parameters(), {.lr = 3e-3});
    const std::vector<int32_t> ids = {0, 3, 10, 7, 7, 2, 9, 4, 1, 5, 30, 17};
    const std::vector<int32_t> next = {3, 10, 7, 7, 2, 9, 4, 1, 5, 30, 17, 2};
    const Tensor x = FromValues<int32_t>({2, 6}, ids);
    const Tensor y = FromValues<int32_t>({2, 6}, next);
    Result mine;
    for (int step = 0; step < run.steps; ++step) {
      const Tensor logits = ToDType(model.Forward(x), kFloat32);
      if (step == 0) mine.logits = FullTensor(logits).ToVector<float>();
      const Tensor loss = CrossEntropy(logits, y);
      CH_RETURN_IF_ERROR(Backward(loss));
      mine.losses.push_back(FullTensor(loss).ToVector<float>()[0]);
      CH_RETURN_IF_ERROR(optimizer.Step());
      optimizer.ZeroGrad();
    }
    for (const nn::NamedParameter& named : model.NamedParameters()) {
      if (named.parameter->data().ndim() != 2) continue;
      CH_CHECK(named.parameter->data().dtype() == kFloat32) << named.name;
      mine.weight = FullTensor(named.parameter->data()).ToVector<float>();
    }
    for (const auto& group : world.groups()) {
      const auto& kinds = group->stats().by_kind;
      if (group->name() == "fsdp") {
        mine.gathered_bytes +=
            kinds[static_cast<size_t>(CollectiveKind::kAllGather)].bytes;
      }
      mine.max_reductions +=
          kinds[static_cast<size_t>(CollectiveKind::kAllReduce)].calls;
    }
    if (world.rank() == 0) result = mine;
    return world.context().Synchronize();
  });
  return result;
}

// The weights' scales come from exact maxima and all ranks have the same rows,
// so a mesh without sums over tp gives the bits of one rank, float8 or not when
// gathered, recomputed or not.
TEST(Float8TrainingTest, FsdpGivesTheBitsOfOneRank) {
  const std::vector<std::vector<MeshAxis>> meshes = {
      {{"fsdp", 2}}, {{"fsdp", 3}}, {{"replicate", 2}, {"fsdp", 2}}};
  for (const auto recipe :
       {Float8Recipe::kTensorwise, Float8Recipe::kRowwise}) {
    const Result one = Train({.recipe = recipe});
    for (const auto& axes : meshes) {
      for (const bool recomputes : {false, true}) {
        const Result all = Train({.axes = axes,
                                  .recipe = recipe,
                                  .gathers_float8 = true,
                                  .recomputes = recomputes});
        EXPECT_EQ(all.logits, one.logits);
        // The mean over three ranks is rounded.
        if (axes[0].size == 3) continue;
        EXPECT_EQ(all.weight, one.weight);
      }
    }
  }
}

TEST(Float8TrainingTest, TheProgramOfThePageTrains) {
  OnMesh({{"fsdp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    nn::Llama model(Small());
    CH_RETURN_IF_ERROR(ShardInFloat8(model, mesh));
    CH_RETURN_IF_ERROR(model.Materialize({.seed = 5}));
    const std::string plan = fsdp::DescribePlan(model);
    CH_EXPECT_TRUE(plan.find("gathered as f8e4m3") != std::string::npos)
        << plan;
    const Tensor x = FromValues<int32_t>({1, 3}, std::vector<int32_t>{1, 2, 3});
    return Backward(Sum(Square(ToDType(model.Forward(x), kFloat32))));
  });
}

double Norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * value;
  return std::sqrt(sum);
}

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  CH_CHECK_EQ(a.size(), b.size());
  std::vector<float> difference;
  for (size_t i = 0; i < a.size(); ++i) difference.push_back(a[i] - b[i]);
  return Norm(difference) / Norm(b);
}

// The reference in float32 has an error of the largest size at each place where
// the float8 model rounds, so the distance of the latter is smaller.
TEST(Float8TrainingTest, LogitsAreWithinTheFormatsError) {
  const Result exact = Train({});
  const double bound = Distance(Train({.perturbs = true}).logits, exact.logits);
  for (const auto recipe :
       {Float8Recipe::kTensorwise, Float8Recipe::kRowwise}) {
    for (const DType dtype : {kFloat32, kBFloat16}) {
      for (const std::vector<MeshAxis>& axes :
           {std::vector<MeshAxis>{{"fsdp", 1}},
            std::vector<MeshAxis>{{"fsdp", 2}, {"tp", 2}},
            std::vector<MeshAxis>{{"fsdp", 1}, {"tp", 3}}}) {
        const Result run = Train({.axes = axes,
                                  .recipe = recipe,
                                  .gathers_float8 = true,
                                  .dtype = dtype});
        const double distance = Distance(run.logits, exact.logits);
        EXPECT_LT(distance, bound);
        EXPECT_GT(distance, 0.001) << "it did not compute in float8";
      }
    }
  }
}

TEST(Float8TrainingTest, ItLearnsAsInFloat32) {
  constexpr int kSteps = 12;
  const Result exact = Train({.steps = kSteps});
  for (const auto recipe :
       {Float8Recipe::kTensorwise, Float8Recipe::kRowwise}) {
    const Result run = Train({.axes = {{"fsdp", 2}, {"tp", 2}},
                              .recipe = recipe,
                              .gathers_float8 = true,
                              .recomputes = true,
                              .steps = kSteps});
    EXPECT_LT(exact.losses.back(), exact.losses.front() / 2);
    EXPECT_LT(run.losses.back(), run.losses.front() / 2);
  }
}

// Float8 weights are a quarter of float32's bytes, and half of bfloat16's. One
// reduction of all scales is added in a step.
TEST(Float8TrainingTest, GathersAQuarterOfTheBytes) {
  const std::vector<MeshAxis> axes = {{"fsdp", 2}};
  const auto bytes = [&](bool gathers_float8, DType dtype) {
    return Train({.axes = axes,
                  .recipe = Float8Recipe::kTensorwise,
                  .gathers_float8 = gathers_float8,
                  .dtype = dtype});
  };
  // Elements of the float8 weights on the other rank: the attention and MLP of
  // both blocks, gathered in forward and backward, and the head, once.
  const int64_t block = (4 * 32 * 32 + 3 * 32 * 48) / 2;
  const int64_t elements = 2 * 2 * block + 32 * 32 / 2;
  const Result plain = bytes(false, kFloat32);
  const Result float8 = bytes(true, kFloat32);
  EXPECT_EQ(plain.gathered_bytes - float8.gathered_bytes, 3 * elements);
  const Result half = bytes(false, kBFloat16);
  EXPECT_EQ(half.gathered_bytes - bytes(true, kBFloat16).gathered_bytes,
            elements);
  EXPECT_EQ(float8.max_reductions, plain.max_reductions + 1);
}

// One rank alone writes its shards, between two forwards.
TEST(Float8TrainingTest, AWriteOnOneRankChangesTheScales) {
  OnMesh({{"fsdp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    const NoGrad no_grad;
    const Tensor x = FromValues<int32_t>({1, 3}, std::vector<int32_t>{1, 2, 3});
    std::vector<std::vector<float>> logits;
    for (const bool forward_before : {false, true}) {
      nn::Llama model(Small());
      CH_RETURN_IF_ERROR(ShardInFloat8(model, mesh));
      CH_RETURN_IF_ERROR(model.Materialize({.seed = 5}));
      if (forward_before) model.Forward(x);
      for (nn::Parameter* p : model.Parameters()) {
        if (mesh.world().rank() == 0) continue;
        const Tensor shard = LocalTensor(p->data());
        CopyInPlace(shard, Mul(shard, 4.0));
      }
      for (int i = 0; i < 2; ++i) {
        logits.push_back(
            ToDType(FullTensor(model.Forward(x)), kFloat32).ToVector<float>());
      }
    }
    for (const auto& later : logits) CH_EXPECT_EQ(later, logits[0]);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace crosshatch
