// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/huggingface.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/examples/gpt2_model.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"
#include "gtest/gtest.h"

namespace crosshatch::examples {
namespace {

constexpr char kModel[] = "examples/testdata/gpt2";
constexpr int64_t kRows = 2;

// Logits of a few units are sums of 12 products of that size, after 12 layers
// of such sums, each rounded by 2^-24, here and in transformers.
constexpr double kBound = 2 * 12 * 12 * 4 * 0x1p-24;

std::vector<float> Expected() {
  std::ifstream file(std::string(kModel) + "/logits.txt");
  std::vector<float> values;
  float value = 0;
  while (file >> value) values.push_back(value);
  return values;
}

// Returns the whole batch, as in make.py.
Tensor Tokens(const Gpt2Config& config) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < kRows * config.positions; ++i) {
    tokens.push_back(static_cast<int32_t>((3 * i + 1) % config.vocab));
  }
  return FromValues<int32_t>({kRows, config.positions}, tokens);
}

void ExpectLogits(nn::Module& model, const std::string& where) {
  const NoGrad no_grad;
  const std::vector<float> expected = Expected();
  const std::vector<float> logits =
      FullTensor(model.Forward(Tokens({}))).ToVector<float>();
  CH_EXPECT_EQ(logits.size(), expected.size());
  double worst = 0;
  for (size_t i = 0; i < expected.size() && i < logits.size(); ++i) {
    worst = std::max(worst, std::abs(double{logits[i]} - double{expected[i]}));
  }
  CH_EXPECT_GT(expected.size(), 0u);
  CH_EXPECT_LE(worst, kBound) << where;
}

TEST(Gpt2Test, LoadsAndSavesHuggingFaceWeights) {
  for (const MeshAxes& axes :
       {MeshAxes{{"fsdp", 1}, {"tp", 1}}, MeshAxes{{"fsdp", 2}, {"tp", 2}},
        MeshAxes{{"fsdp", 1}, {"tp", 3}}}) {
    const std::string copy =
        ::testing::TempDir() + "/copy" + std::to_string(axes.ranks());
    OnMesh(axes, [&](const DeviceMesh& mesh) -> absl::Status {
      const Gpt2Config config;
      Gpt2 model(config);
      CH_RETURN_IF_ERROR(ParallelizeGpt2(model, mesh));
      CH_RETURN_IF_ERROR(checkpoint::LoadWeights(model, kModel, Gpt2Names()));
      ExpectLogits(model, mesh.ToString());
      CH_RETURN_IF_ERROR(checkpoint::SaveWeights(
          mesh.world(), model, copy, Gpt2Names(), Gpt2ConfigText(config)));
      Gpt2 again(config);
      CH_RETURN_IF_ERROR(checkpoint::LoadWeights(again, copy, Gpt2Names()));
      ExpectLogits(again, mesh.ToString() + ", written and read");
      return mesh.world().context().Synchronize();
    });
  }
}

}  // namespace
}  // namespace crosshatch::examples
