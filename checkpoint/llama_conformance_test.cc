// SPDX-License-Identifier: Apache-2.0
// Compares logits, losses, norms and final weights on one rank with those of
// Hugging Face's LlamaForCausalLM and torch.optim.AdamW in float32. The bounds
// are a few times the difference of that computation from float64.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/file_io.h"
#include "crosshatch/checkpoint/hf_config.h"
#include "crosshatch/checkpoint/huggingface.h"
#include "crosshatch/checkpoint/weight_files.h"
#include "crosshatch/checkpoint/weights_testutil.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/nn/optim/clip_grad.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cross_entropy.h"
#include "crosshatch/testing/ranks.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace crosshatch::checkpoint {
namespace {

constexpr double kLossBound = 2e-6;  // Relative.
constexpr double kNormBound = 5e-5;  // Relative.
constexpr double kLogitBound = 1e-5;
constexpr double kMostWeightsBound = 2e-5;  // For 99.9 % of the elements.
constexpr double kWeightBound = 5e-4;

struct Case {
  nlohmann::json answer;
  std::vector<uint16_t> tokens;
};

absl::StatusOr<Case> ReadCase(const std::string& dir) {
  CH_ASSIGN_OR_RETURN(const std::string text, ReadFile(dir + "/answer.json"));
  CH_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(dir + "/tokens.bin"));
  Case result;
  result.answer = nlohmann::json::parse(text);
  result.tokens.resize(bytes.size() / 2);
  std::memcpy(result.tokens.data(), bytes.data(), result.tokens.size() * 2);
  return result;
}

/// Returns tokens [first + shift, ...) of rows of `length`.
Tensor Rows(const std::vector<uint16_t>& tokens, int64_t first, int64_t rows,
            int64_t length, int64_t shift) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < rows * length; ++i) {
    ids.push_back(tokens[static_cast<size_t>(first + i + shift)]);
  }
  return FromValues<int32_t>({rows, length}, absl::MakeConstSpan(ids));
}

absl::Status ExpectFinalWeights(nn::Llama& model, const std::string& dir) {
  CH_ASSIGN_OR_RETURN(const auto expected, OpenWeights(dir + "/final"));
  int64_t count = 0;
  int64_t far = 0;
  double worst = 0;
  for (const nn::NamedParameter& named : model.NamedParameters()) {
    const std::string name =
        named.name == "lm_head.weight" ? named.name : "model." + named.name;
    CH_EXPECT_EQ(expected.count(name), 1u) << name;
    if (expected.count(name) != 1) continue;
    const std::vector<float> values = ValuesOf(expected.at(name));
    const std::vector<float> got = named.parameter->data().ToVector<float>();
    CH_EXPECT_EQ(got.size(), values.size()) << name;
    if (got.size() != values.size()) continue;
    for (size_t i = 0; i < values.size(); ++i) {
      const double difference = std::abs(double{got[i]} - values[i]);
      worst = std::max(worst, difference);
      far += difference > kMostWeightsBound;
      ++count;
    }
  }
  CH_EXPECT_GT(count, 0);
  CH_EXPECT_LE(worst, kWeightBound);
  CH_EXPECT_LE(static_cast<double>(far), 0.001 * static_cast<double>(count));
  return absl::OkStatus();
}

absl::Status Train(const std::string& dir) {
  CH_ASSIGN_OR_RETURN(const Case reference, ReadCase(dir));
  const nlohmann::json& settings = reference.answer["case"];
  const int64_t batch = settings["batch"];
  const int64_t length = settings["seq"];
  CH_ASSIGN_OR_RETURN(const nn::LlamaConfig config, LoadConfig(dir));
  nn::Llama model(config);
  CH_RETURN_IF_ERROR(LoadHuggingFace(model, dir));
  nn::AdamW optimizer(model.Parameters(), {.lr = settings["lr"],
                                           .beta1 = 0.9,
                                           .beta2 = 0.95,
                                           .eps = 1e-8,
                                           .weight_decay = 0.1});
  int64_t first = 0;
  for (const nlohmann::json& step : reference.answer["steps"]) {
    const Tensor inputs = Rows(reference.tokens, first, batch, length, 0);
    const Tensor targets = Rows(reference.tokens, first, batch, length, 1);
    const Tensor logits = model.Forward(inputs);
    if (first == 0) {
      const std::vector<float> values = logits.ToVector<float>();
      for (int t = 0; t < 4; ++t) {
        for (int v = 0; v < 8; ++v) {
          CH_EXPECT_NEAR(values[t * config.vocab + v],
                         reference.answer["first_logits"][t][v].get<double>(),
                         kLogitBound);
        }
      }
    }
    const Tensor loss = CrossEntropy(logits, targets);
    CH_RETURN_IF_ERROR(Backward(loss));
    CH_ASSIGN_OR_RETURN(
        const float norm,
        nn::ClipGradNorm(model.Parameters(), settings["clip"].get<double>()));
    CH_RETURN_IF_ERROR(optimizer.Step());
    optimizer.ZeroGrad();
    const double expected_loss = step["loss"];
    const double expected_norm = step["grad_norm"];
    CH_EXPECT_NEAR(loss.ToVector<float>()[0], expected_loss,
                   kLossBound * expected_loss);
    CH_EXPECT_NEAR(norm, expected_norm, kNormBound * expected_norm);
    first += batch * length;
  }
  return ExpectFinalWeights(model, dir);
}

class LlamaConformanceTest : public ::testing::TestWithParam<const char*> {
 protected:
  static void Run(const JobOptions& options) {
    RunRanks(
        1,
        [](World&) {
          return Train(std::string("tests/conformance/llama/") + GetParam());
        },
        options);
  }
};

TEST_P(LlamaConformanceTest, TrainsAsHuggingFaceDoes) { Run({}); }

TEST_P(LlamaConformanceTest, TrainsOnAdversarialStreams) {
  for (const uint64_t seed : {1, 2}) {
    SCOPED_TRACE(absl::StrCat("adversarial seed ", seed));
    Run({.test = {.adversarial_seed = seed}});
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, LlamaConformanceTest,
                         ::testing::Values("gqa", "tied"));

}  // namespace
}  // namespace crosshatch::checkpoint
