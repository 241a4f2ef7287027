// SPDX-License-Identifier: Apache-2.0

/// \file
/// Llama's heads under tensor parallelism: any number of query heads and key
/// heads on any number of ranks.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/models/kv_cache.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/near.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/llama_plan.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

nn::LlamaConfig Config(int64_t heads, int64_t kv_heads) {
  return {.dim = 4 * heads,
          .layers = 1,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = 4,
          .ffn = 7,
          .vocab = 11,
          .initializer_stddev = 0.3};
}

absl::StatusOr<Values> LogitsAndGradients(nn::Llama& model) {
  const std::vector<int32_t> ids = {0, 3, 10, 7, 7, 2, 9, 4, 1, 5};
  const Tensor logits = model.Forward(FromValues<int32_t>({2, 5}, ids));
  CH_RETURN_IF_ERROR(Backward(Sum(Tanh(logits))));
  Values values = {FullTensor(logits).ToVector<float>()};
  for (nn::Parameter* p : model.Parameters()) {
    values.push_back(FullTensor(p->grad()).ToVector<float>());
  }
  return values;
}

// Sums of at most some 100 products in different orders.
constexpr double kRoundings = 200;

tp::ParallelPlan Plan(const nn::LlamaConfig& config, bool local_outputs) {
  tp::ParallelPlan plan = tp::LlamaPlan(config);
  if (!local_outputs) return plan;
  // Each rank's heads are plain tensors, for a program's own attention kernel.
  for (auto& [pattern, style] : plan) {
    if (pattern == "layers.*.self_attn.q_proj") {
      style = tp::ColwiseParallel(
          {.use_local_output = true,
           .unit = config.heads / config.kv_heads * config.head_dim,
           .subunit = config.head_dim});
    } else if (pattern == "layers.*.self_attn.[kv]_proj") {
      style = tp::ColwiseParallel({.use_local_output = true,
                                   .unit = config.head_dim,
                                   .query_heads = config.heads});
    }
  }
  return plan;
}

class LlamaHeadsTest
    : public ::testing::TestWithParam<std::tuple<int, int, int, bool>> {};

TEST_P(LlamaHeadsTest, MatchesOneRank) {
  const auto& [kv_heads, group, ranks, local_outputs] = GetParam();
  const nn::LlamaConfig config = Config(kv_heads * group, kv_heads);
  nn::Llama whole(config, Device::Cpu());
  const absl::StatusOr<Values> expected = LogitsAndGradients(whole);
  ASSERT_TRUE(expected.ok()) << expected.status();
  OnMesh({{"tp", ranks}},
         [&, ranks = ranks, local_outputs = local_outputs](
             const DeviceMesh& mesh) -> absl::Status {
           World& world = mesh.world();
           nn::Llama model(config);
           CH_RETURN_IF_ERROR(
               tp::ParallelizeModule(model, mesh, Plan(config, local_outputs)));
           CH_RETURN_IF_ERROR(model.Materialize({.seed = 0}));
           // Keys are gathered only where the plan says so.
           std::optional<ForbidImplicitRedistribution> forbid;
           if (!local_outputs) forbid.emplace();
           CH_ASSIGN_OR_RETURN(const Values got, LogitsAndGradients(model));
           if (world.rank() == 0) ExpectNear(got, *expected, kRoundings);
           return world.context().Synchronize();
         });
}

TEST_P(LlamaHeadsTest, AreCachedWhereTheyLie) {
  const auto& [kv_heads, group, ranks, local_outputs] = GetParam();
  const nn::LlamaConfig config = Config(kv_heads * group, kv_heads);
  OnMesh({{"tp", ranks}},
         [&, ranks = ranks, local_outputs = local_outputs](
             const DeviceMesh& mesh) -> absl::Status {
           RankContext& context = mesh.world().context();
           nn::Llama model(config);
           CH_RETURN_IF_ERROR(
               tp::ParallelizeModule(model, mesh, Plan(config, local_outputs)));
           CH_RETURN_IF_ERROR(model.Materialize({.seed = 0}));
           const NoGrad no_grad;
           const std::vector<int32_t> ids = {0, 3, 10, 7, 7, 2, 9, 4, 1, 5};
           const Tensor tokens = FromValues<int32_t>({2, 5}, ids);
           const auto logits = [&](int64_t begin, int64_t end) {
             return FullTensor(
                        model.Forward(Contiguous(Slice(tokens, 1, begin, end))))
                 .ToVector<float>();
           };
           const std::vector<float> whole = logits(0, 5);
           const int64_t before = context.allocator().stats().current_total;
           nn::KvCache cache(5);
           model.set_cache(&cache);
           logits(0, 3);
           logits(3, 4);
           const std::vector<float> last = logits(4, 5);
           model.set_cache(nullptr);
           CH_RETURN_IF_ERROR(context.Synchronize());
           int64_t width = 0;  // Of this rank's key heads.
           for (nn::Parameter* p : model.Parameters()) {
             if (p->name() != "layers.0.self_attn.k_proj.weight") continue;
             width = LocalTensor(p->data()).size(0);
           }
           // Two rows of five positions, keys and values.
           CH_EXPECT_EQ(context.allocator().stats().current_total - before,
                        2 * 5 * width * 2 * 4);
           Values expected = {{}};
           for (const int64_t row : {0, 1}) {
             const auto at = whole.begin() + (row * 5 + 4) * config.vocab;
             expected[0].insert(expected[0].end(), at, at + config.vocab);
           }
           if (mesh.world().rank() == 0) {
             ExpectNear({last}, expected, kRoundings);
           }
           return absl::OkStatus();
         });
}

INSTANTIATE_TEST_SUITE_P(All, LlamaHeadsTest,
                         ::testing::Combine(::testing::Values(1, 2, 3),
                                            ::testing::Values(1, 2, 3),
                                            ::testing::Values(2, 3, 4),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           const int kv_heads = std::get<0>(info.param);
                           const int heads = kv_heads * std::get<1>(info.param);
                           return "kv" + std::to_string(kv_heads) + "_heads" +
                                  std::to_string(heads) + "_tp" +
                                  std::to_string(std::get<2>(info.param)) +
                                  (std::get<3>(info.param) ? "_local" : "");
                         });

}  // namespace
}  // namespace crosshatch
