// SPDX-License-Identifier: Apache-2.0

/// \file
/// Trainings on the reference device. The tests of the ops are linked to the
/// same binary.

#include <cstdint>
#include <string>
#include <vector>

#include "crosshatch/comm/world.h"
#include "crosshatch/nn/adamw.h"
#include "crosshatch/nn/materialize.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/backends/reference/reference_backend.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cross_entropy.h"
#include "crosshatch/tensor/ops/matmul.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tests/llama_case_testutil.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::HasSubstr;

TEST(ReferenceDeviceTest, IsWhatTheTestsOfThisBinaryRunOn) {
  EXPECT_EQ(&RankContext::Current().backend(), &ReferenceBackend());
  EXPECT_EQ(Zeros({1}).device(), Device::Reference());
}

// What five steps of a small model lose, and what they leave leased.
std::vector<float> LossesOn(const DeviceBackend* backend) {
  RankContext context({.backend = backend});
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

// Within the bound that tests/conformance states for losses of all
// implementations.
TEST(ReferenceDeviceTest, TrainsInMemoryThatTheHostCannotAddress) {
  const std::vector<float> expected = LossesOn(nullptr);
  const std::vector<float> losses = LossesOn(&ReferenceBackend());
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], expected[i], 2e-6 * expected[i]) << "step " << i;
  }
  EXPECT_LT(losses.back(), losses.front());
}

TEST(ReferenceDeviceTest, TrainsOnAMesh) {
  for (const std::string mesh : {"fsdp:1", "fsdp:2,tp:2"}) {
    SCOPED_TRACE(mesh);
    ExpectTrainsAsTheReferenceDoes("tied", mesh,
                                   {.backend = &SharedReferenceBackend()});
  }
}

TEST(ReferenceDeviceTest, RanksThatAreThreadsWantMemoryThatTheyCanRead) {
  const absl::Status status =
      StatusOfRanks(2, [](World&) { return absl::OkStatus(); },
                    {.backend = &ReferenceBackend()});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the host cannot address the memory of reference"));
}

// A dry run is of the device: with its kernels' workspaces, of which the
// reference has none.
TEST(ReferenceDeviceTest, ADryRunTakesTheMemoryOfARun) {
  const auto peak = [](bool dry_run) {
    RankContext context({.backend = &ReferenceBackend(), .dry_run = dry_run});
    const RankContextScope scope(&context);
    const Tensor x = Zeros({4, 6}, kBFloat16);
    MatMul(x, Transpose(x, 0, 1));
    return context.allocator().stats().peak_total;
  };
  EXPECT_EQ(peak(true), peak(false));
  // The operand and the product, no workspace: the CPU takes one.
  EXPECT_EQ(peak(false), (4 * 6 + 4 * 4) * 2);
}

}  // namespace
}  // namespace crosshatch
