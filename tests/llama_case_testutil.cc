// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tests/llama_case_testutil.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "crosshatch/checkpoint/hf_config.h"
#include "crosshatch/checkpoint/safetensors.h"
#include "crosshatch/examples/token_source.h"
#include "crosshatch/examples/train.h"
#include "crosshatch/examples/train_options.h"
#include "crosshatch/testing/ranks.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using checkpoint::SafetensorsFile;

// The bounds of tests/conformance: relative for losses and norms, absolute for
// weights.
constexpr double kLossBound = 2e-6;
constexpr double kNormBound = 5e-5;
constexpr double kWeightBound = 2e-5;  // For 99.9 % of the elements.
constexpr double kWorstWeightBound = 5e-4;

std::string DirOf(const std::string& model) {
  return absl::StrCat("tests/conformance/llama/", model);
}

std::vector<nlohmann::json> ReadLines(const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    lines.push_back(nlohmann::json::parse(line));
  }
  return lines;
}

// Reads all weights of a file, in the order of tensor names.
std::vector<float> AllWeights(const std::string& path) {
  const auto file = SafetensorsFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  std::vector<const checkpoint::TensorInfo*> infos;
  for (const auto& info : (*file)->tensors()) infos.push_back(&info);
  std::sort(infos.begin(), infos.end(),
            [](auto* a, auto* b) { return a->name < b->name; });
  std::vector<float> weights;
  for (const auto* info : infos) {
    const int index = static_cast<int>(info - (*file)->tensors().data());
    std::vector<float> values(static_cast<size_t>(NumElements(info->sizes)));
    EXPECT_TRUE(
        (*file)
            ->Read(index, WholeBox(info->sizes), kFloat32, values.data())
            .ok());
    weights.insert(weights.end(), values.begin(), values.end());
  }
  return weights;
}

}  // namespace

void ExpectTrainsAsTheReferenceDoes(const std::string& model,
                                    const std::string& mesh,
                                    const JobOptions& run) {
  std::ifstream answer_file(DirOf(model) + "/answer.json");
  const auto answer = nlohmann::json::parse(answer_file);
  const auto& given = answer["case"];
  const std::string out =
      absl::StrCat(::testing::TempDir(), "/", model,
                   absl::StrReplaceAll(mesh, {{":", ""}, {",", "_"}}));

  examples::TrainOptions options;
  options.mesh = *examples::ParseMesh(mesh);
  options.model_dir = DirOf(model);
  options.config = *checkpoint::LoadConfig(options.model_dir);
  options.global_batch = given["batch"];
  options.seq_len = given["seq"];
  options.steps = given["steps"];
  options.lr = given["lr"];
  options.beta1 = 0.9;
  options.beta2 = 0.95;
  options.eps = 1e-8;
  options.weight_decay = 0.1;
  options.clip_norm = given["clip"];
  options.metrics = out + ".jsonl";
  options.save_dir = out;
  options.overwrite = true;
  const auto tokens =
      examples::TokenSource::FromTokenFile(DirOf(model) + "/tokens.bin");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  const absl::Status status = StatusOfRanks(
      options.world_size(),
      [&](World& world) { return examples::Train(world, options, *tokens); },
      run);
  ASSERT_TRUE(status.ok()) << status;

  const auto lines = ReadLines(options.metrics);
  ASSERT_EQ(lines.size(), answer["steps"].size());
  for (size_t i = 0; i < lines.size(); ++i) {
    const double loss = answer["steps"][i]["loss"];
    const double norm = answer["steps"][i]["grad_norm"];
    EXPECT_NEAR(lines[i]["loss"].get<double>(), loss, kLossBound * loss);
    EXPECT_NEAR(lines[i]["grad_norm"].get<double>(), norm, kNormBound * norm);
  }
  const auto weights = AllWeights(out + "/model.safetensors");
  const auto expected = AllWeights(DirOf(model) + "/final/model.safetensors");
  ASSERT_EQ(weights.size(), expected.size());
  size_t above = 0;
  double worst = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double difference = std::abs(weights[i] - expected[i]);
    above += difference > kWeightBound ? 1 : 0;
    worst = std::max(worst, difference);
  }
  EXPECT_LE(above, weights.size() / 1000);
  EXPECT_LE(worst, kWorstWeightBound);
}

}  // namespace crosshatch
