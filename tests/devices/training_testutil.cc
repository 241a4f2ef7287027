// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tests/devices/training_testutil.h"

#include <vector>

#include "crosshatch/nn/materialize.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cross_entropy.h"
#include "crosshatch/tensor/rank_context.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

// Returns the losses of five steps of a small model.
std::vector<float> LossesOn(const DeviceBackend* backend,
                            uint64_t adversarial_seed) {
  RankContext context(
      {.backend = backend, .adversarial_seed = adversarial_seed});
  const RankContextScope scope(&context);
  nn::LlamaConfig config;
  config.dim = 12;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 6;
  config.ffn = 20;
  config.vocab = 11;
  nn::Llama model(config);
  EXPECT_TRUE(model.Materialize({.seed = 5}).ok());
  nn::AdamW optimizer(model.Parameters(), {.lr = 1e-3});
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 15; ++i) ids.push_back(i * 7 % 11);
  const Tensor tokens = FromValues<int32_t>({3, 5}, absl::MakeConstSpan(ids));
  std::vector<float> losses;
  for (int step = 0; step < 5; ++step) {
    const Tensor loss = CrossEntropy(model.Forward(tokens), tokens);
    losses.push_back(loss.ToVector<float>()[0]);
    EXPECT_TRUE(Backward(loss).ok());
    EXPECT_TRUE(optimizer.Step().ok());
    optimizer.ZeroGrad();
  }
  EXPECT_GT(context.allocator().reserved_bytes(), 0);
  return losses;
}

}  // namespace

void ExpectTrainsAsOnTheCpu(const DeviceBackend& backend,
                            uint64_t adversarial_seed) {
  const std::vector<float> expected = LossesOn(nullptr, 0);
  const std::vector<float> losses = LossesOn(&backend, adversarial_seed);
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], expected[i], 2e-6 * expected[i]) << "step " << i;
  }
  EXPECT_LT(losses.back(), losses.front());
}

}  // namespace crosshatch
