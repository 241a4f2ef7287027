// SPDX-License-Identifier: Apache-2.0

/// \file
/// Training on a CUDA device, real or emulated. The tests of the ops are linked
/// to the same binary.

#include <vector>

#include "crosshatch/nn/materialize.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/backends/cuda/cuda_backend.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cross_entropy.h"
#include "crosshatch/tensor/ops/matmul.h"
#include "crosshatch/tensor/ops/view.h"
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

// Expects the CPU's losses, within the bound of tests/conformance.
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

TEST(CudaDeviceTest, IsTheDeviceOfThisBinary) {
  EXPECT_EQ(&RankContext::Current().backend(), *CudaBackend(0));
  EXPECT_EQ(Zeros({1}).device(), Device::Cuda(0));
}

TEST(CudaDeviceTest, TrainsAsTheCpuDoes) {
  for (int index = 0; CudaBackend(index).ok(); ++index) {
    for (const uint64_t adversarial_seed : {0, 1, 2}) {
      ExpectTrainsAsOnTheCpu(**CudaBackend(index), adversarial_seed);
    }
  }
}

TEST(CudaDeviceTest, ADryRunTakesTheMemoryOfARun) {
  const auto peak = [](bool dry_run) {
    RankContext context({.backend = *CudaBackend(0), .dry_run = dry_run});
    const RankContextScope scope(&context);
    const Tensor x = Zeros({4, 6}, kBFloat16);
    MatMul(x, Transpose(x, 0, 1));
    return context.allocator().stats().peak_total;
  };
  EXPECT_EQ(peak(true), peak(false));
}

}  // namespace

}  // namespace crosshatch
