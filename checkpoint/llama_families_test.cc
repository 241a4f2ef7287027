// SPDX-License-Identifier: Apache-2.0

// Reads, computes and writes models of transformers on several meshes, one of
// each family that differs from Llama in a few options.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/file_io.h"
#include "crosshatch/checkpoint/hf_config.h"
#include "crosshatch/checkpoint/huggingface.h"
#include "crosshatch/checkpoint/weights_testutil.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/extensions/dtensor_extensions.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/summon.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/optim/clip_grad.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cross_entropy.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/llama_plan.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace crosshatch {
namespace {

// A sum in another order differs about as much as float32 differs from float64.
// A number depends on at most four such sums.
constexpr double kTimesFloat64 = 4;
// Allows a few roundings where the result happens to agree with float64.
constexpr double kLeast = 4 * 0x1p-23;

struct Case {
  std::string family;
  int fsdp, tp;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.family << " on " << c.fsdp << "x" << c.tp;
}

std::string DirOf(const Case& c) {
  return absl::StrCat("tests/conformance/families/", c.family);
}

Tensor Ids(const nlohmann::json& rows) {
  std::vector<int32_t> ids;
  for (const auto& row : rows) {
    for (const int32_t id : row) ids.push_back(id);
  }
  const auto count = static_cast<int64_t>(rows.size());
  return FromValues<int32_t>({count, static_cast<int64_t>(ids.size()) / count},
                             absl::MakeConstSpan(ids));
}

absl::Status Distribute(nn::Llama& model, const DeviceMesh& mesh) {
  CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
  CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice("fsdp"));
  CH_RETURN_IF_ERROR(
      tp::ParallelizeModule(model, tp, tp::LlamaPlan(model.config())));
  const fsdp::FullyShardOptions options = {.extension =
                                               DTensorExtensions::Create()};
  for (nn::Module& block : model.blocks()) {
    CH_RETURN_IF_ERROR(fsdp::FullyShard(block, fsdp, options));
  }
  return fsdp::FullyShard(model, fsdp, options);
}

/// Compares with the results of transformers. Every rank has the whole batch.
absl::Status Compute(nn::Llama& model, const nlohmann::json& answer) {
  const nlohmann::json& differs = answer["differs_from_float64"];
  const auto bound = [&](const char* name, double size) {
    return kTimesFloat64 * differs[name].get<double>() + kLeast * size;
  };
  const Tensor logits = model.Forward(Ids(answer["tokens"]));
  const std::vector<float> got = FullTensor(logits).ToVector<float>();
  const std::vector<float> expected = answer["logits"];
  CH_EXPECT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < std::min(got.size(), expected.size()); ++i) {
    CH_EXPECT_NEAR(got[i], expected[i], bound("logits", 4)) << i;
  }
  const Tensor loss = CrossEntropy(logits, Ids(answer["targets"]));
  const double expected_loss = answer["loss"];
  CH_EXPECT_NEAR(LocalTensor(loss).ToVector<float>()[0], expected_loss,
                 bound("loss", expected_loss));
  CH_RETURN_IF_ERROR(Backward(loss));
  CH_ASSIGN_OR_RETURN(const float norm,
                      nn::ClipGradNorm(model.Parameters(), 1e6));
  const double expected_norm = answer["grad_norm"];
  CH_EXPECT_NEAR(norm, expected_norm, bound("grad_norm", 4 * expected_norm));
  return absl::OkStatus();
}

// While summoned, a save would write old values and a load would be
// overwritten.
TEST(HuggingFaceOfFsdpTest, IsRefusedWhileSummoned) {
  const std::string dir = "tests/conformance/families/mistral";
  const std::string saved = FreshDir("summoned");
  OnMesh({{"fsdp", 2}, {"tp", 1}}, [&](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const nn::LlamaConfig config,
                        checkpoint::LoadConfig(dir));
    nn::Llama model(config);
    CH_RETURN_IF_ERROR(Distribute(model, mesh));
    CH_RETURN_IF_ERROR(checkpoint::LoadHuggingFace(model, dir));
    {
      CH_ASSIGN_OR_RETURN(const auto scope,
                          fsdp::SummonFullParameters::Begin(model));
      for (const absl::Status& status :
           {checkpoint::SaveHuggingFace(mesh.world(), model, saved),
            checkpoint::LoadHuggingFace(model, dir)}) {
        CH_EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
        CH_EXPECT_THAT(std::string(status.message()),
                       ::testing::HasSubstr("are summoned already"));
      }
    }
    return checkpoint::SaveHuggingFace(mesh.world(), model, saved);
  });
  checkpoint::ExpectSameWeights(dir, saved);
}

class LlamaFamiliesTest : public ::testing::TestWithParam<Case> {};

TEST_P(LlamaFamiliesTest, MatchesTransformers) {
  const Case& c = GetParam();
  const std::string dir = DirOf(c);
  const std::string saved =
      FreshDir(absl::StrCat("saved_", c.family, "_", c.fsdp, "_", c.tp));
  const absl::StatusOr<std::string> text =
      checkpoint::ReadFile(dir + "/answer.json");
  ASSERT_TRUE(text.ok()) << text.status();
  const nlohmann::json answer = nlohmann::json::parse(*text);
  OnMesh({{"fsdp", c.fsdp}, {"tp", c.tp}},
         [&](const DeviceMesh& mesh) -> absl::Status {
           CH_ASSIGN_OR_RETURN(const nn::LlamaConfig config,
                               checkpoint::LoadConfig(dir));
           nn::Llama model(config);
           CH_RETURN_IF_ERROR(Distribute(model, mesh));
           CH_RETURN_IF_ERROR(checkpoint::LoadHuggingFace(model, dir));
           CH_RETURN_IF_ERROR(Compute(model, answer));
           return checkpoint::SaveHuggingFace(mesh.world(), model, saved,
                                              {.max_file_bytes = 5000});
         });
  checkpoint::ExpectSameWeights(dir, saved);
  EXPECT_TRUE(std::filesystem::exists(saved + "/model.safetensors.index.json"));
  const auto before = checkpoint::LoadConfig(dir);
  const auto after = checkpoint::LoadConfig(saved);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(*before, *after);
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const char* family :
       {"llama3_biases", "llama_dynamic", "llama_linear", "llama_yarn",
        "mistral", "phi3", "qwen2", "qwen3"}) {
    for (const auto& [fsdp, tp] :
         {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 2}, {1, 3}}) {
      cases.push_back({family, fsdp, tp});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, LlamaFamiliesTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) {
                           return absl::StrCat(info.param.family, "_fsdp",
                                               info.param.fsdp, "_tp",
                                               info.param.tp);
                         });

}  // namespace
}  // namespace crosshatch
