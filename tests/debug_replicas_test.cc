// SPDX-License-Identifier: Apache-2.0

/// \file
/// CROSSHATCH_DEBUG=replicas, set in this test's environment: replicas are
/// compared wherever ops rely on them.

#include <string>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/llama_plan.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

enum class Mistake { kNone, kOtherIds, kOtherTargets, kOtherWeights };

absl::Status Train(World& world, Mistake mistake) {
  CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                      InitDeviceMesh(world, {{"tp", 2}}));
  nn::Llama model({.dim = 8, .layers = 1, .heads = 2, .ffn = 12, .vocab = 11});
  CH_RETURN_IF_ERROR(
      tp::ParallelizeModule(model, mesh, tp::LlamaPlan(model.config())));
  CH_RETURN_IF_ERROR(model.Materialize({.seed = 7}));
  nn::AdamW optimizer(model.Parameters(), {});
  const bool wrong = world.rank() == 1;
  const Tensor ids = FromValues<int32_t>({1, 4}, {0, 3, 10, 7});
  const Tensor others = FromValues<int32_t>({1, 4}, {0, 3, 9, 7});
  const auto given = [&](Mistake of) {
    return wrong && mistake == of ? others : ids;
  };
  CH_RETURN_IF_ERROR(
      Backward(CrossEntropy(model.Forward(given(Mistake::kOtherIds)),
                            given(Mistake::kOtherTargets))));
  if (wrong && mistake == Mistake::kOtherWeights) {
    for (nn::Parameter* p : model.Parameters()) {
      if (p->name() != "layers.0.input_layernorm.weight") continue;
      FillInPlace(WritableLocalTensor(p->data(), "the test"), 2);
    }
  }
  return optimizer.Step();
}

std::string MessageOf(Mistake mistake) {
  const absl::Status status =
      StatusOfRanks(2, [&](World& world) { return Train(world, mistake); });
  return status.ok() ? "OK" : std::string(status.message());
}

TEST(DebugReplicasTest, NamesRanksThatDiffer) {
  EXPECT_EQ(MessageOf(Mistake::kNone), "OK");
  EXPECT_THAT(MessageOf(Mistake::kOtherIds),
              AllOf(HasSubstr("in module embed_tokens (Embedding)"),
                    HasSubstr("ranks 0 and 1 replicate a part of [1, 4]")));
  EXPECT_THAT(MessageOf(Mistake::kOtherTargets),
              AllOf(HasSubstr("cross_entropy"),
                    HasSubstr("ranks 0 and 1 replicate a part of [1, 4]")));
  EXPECT_THAT(
      MessageOf(Mistake::kOtherWeights),
      HasSubstr("AdamW::Step: parameter layers.0.input_layernorm.weight"));
}

}  // namespace
}  // namespace crosshatch
