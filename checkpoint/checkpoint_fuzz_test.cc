// SPDX-License-Identifier: Apache-2.0

/// \file
/// Damages a checkpoint at random and reads it: the result is an error or the
/// saved values. Also damages a Hugging Face directory, which has no hashes:
/// the result is an error or a model, without a crash. CROSSHATCH_FUZZ_SEED
/// sets the seed, CROSSHATCH_CHECKPOINT_FUZZ_CASES the number of cases.
/// testdata/corpus has indexes, data files and configs that were, or could be,
/// read wrongly.

#include <cstdint>
#include <filesystem>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/checkpoint.h"
#include "crosshatch/checkpoint/file_io.h"
#include "crosshatch/checkpoint/file_system_testutil.h"
#include "crosshatch/checkpoint/hf_config.h"
#include "crosshatch/checkpoint/huggingface.h"
#include "crosshatch/checkpoint/index.h"
#include "crosshatch/checkpoint/offline.h"
#include "crosshatch/checkpoint/safetensors.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/testing/ranks.h"
#include "gtest/gtest.h"

namespace crosshatch::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr char kSample[] = "checkpoint/testdata/version-1";
constexpr char kModel[] = "tests/conformance/families/phi3";
constexpr char kCorpus[] = "checkpoint/testdata/corpus";

std::string FreshDir(const std::string& name) {
  const std::string dir = ::testing::TempDir() + name;
  fs::remove_all(dir);
  fs::create_directories(dir);
  return dir;
}

/// Returns the sorted names in `dir`.
std::vector<std::string> NamesIn(const std::string& dir) {
  std::vector<std::string> names;
  EXPECT_EQ(FileSystem::Real().List(dir, names), 0);
  return names;
}

/// Numbers at which counts or their products overflow.
const char* const kNumbers[] = {"0",
                                "1",
                                "-1",
                                "5",
                                "1e30",
                                "2147483648",
                                "4611686018427387904",
                                "9223372036854775807",
                                "18446744073709551615",
                                "99999999999999999999",
                                "0.5",
                                "null",
                                "[]",
                                "{}",
                                "\"\"",
                                "true"};

/// Replaces a run of digits by a number.
void ReplaceNumber(std::string& text, std::mt19937& random) {
  const size_t from = text.find_first_of("0123456789", random() % text.size());
  if (from == std::string::npos) return;
  const size_t to = text.find_first_not_of("0123456789", from);
  text.replace(from, (to == std::string::npos ? text.size() : to) - from,
               kNumbers[random() % std::size(kNumbers)]);
}

/// Copies a part of `text` to another place in it.
void CopyPart(std::string& text, std::mt19937& random) {
  const size_t from = random() % text.size();
  const std::string part = text.substr(from, 1 + random() % 64);
  text.insert(random() % text.size(), part);
}

void Damage(std::string& text, std::mt19937& random) {
  if (text.empty()) return;
  const size_t at = random() % text.size();
  switch (random() % 7) {
    case 0:
      text[at] = static_cast<char>(text[at] ^ (1 << random() % 8));
      break;
    case 1:
      text.resize(at);
      break;
    case 2:
      text.erase(at, 1 + random() % 64);
      break;
    case 3:
      CopyPart(text, random);
      break;
    case 4:
      text.insert(at, 1 + random() % 16, static_cast<char>(random()));
      break;
    default:
      ReplaceNumber(text, random);
  }
}

/// Copies the files `names` from `from` to `to`, and damages `name`.
/// \returns the damaged content.
std::string CopyDamaged(const std::string& from, const std::string& to,
                        const std::vector<std::string>& names,
                        const std::string& name, std::mt19937& random) {
  fs::create_directories(to);
  for (const std::string& file : names) {
    WriteBytes(to + "/" + file, ReadBytes(from + "/" + file));
  }
  std::string text = ReadBytes(to + "/" + name);
  const unsigned times = 1 + random() % 3;
  for (unsigned j = 0; j < times; ++j) Damage(text, random);
  WriteBytes(to + "/" + name, text);
  return text;
}

nn::StateDict StateToFill() {
  nn::StateDict state;
  for (const auto& [name, sizes] :
       std::vector<std::pair<std::string, Shape>>{{"model.norm", {4}},
                                                  {"model.w", {5, 4}},
                                                  {"optimizer.m.w", {5, 3}}}) {
    EXPECT_TRUE(state.Add(name, Zeros(sizes)).ok());
  }
  EXPECT_TRUE(state.Add("step", int64_t{0}).ok());
  EXPECT_TRUE(state.Add("optimizer.lr", 0.0).ok());
  return state;
}

/// Loads the sample's tensors from `dir`.
absl::Status Load(const std::string& dir, int ranks, bool verify,
                  std::vector<double>& values) {
  return StatusOfRanks(ranks, [&](World& world) -> absl::Status {
    nn::StateDict state = StateToFill();
    CH_RETURN_IF_ERROR(LoadCheckpoint(world, state, dir, {.verify = verify}));
    if (world.rank() != 0) return absl::OkStatus();
    values.clear();
    for (const char* name : {"model.norm", "model.w", "optimizer.m.w"}) {
      CH_ASSIGN_OR_RETURN(const Tensor tensor, state.Get<Tensor>(name));
      for (const double value : tensor.ToVector<double>()) {
        values.push_back(value);
      }
    }
    return absl::OkStatus();
  });
}

TEST(CheckpointFuzzTest, ReportsHarmfulDamage) {
  const unsigned seed = FuzzSeed();
  const unsigned cases = FuzzCases("CROSSHATCH_CHECKPOINT_FUZZ_CASES", 400);
  std::mt19937 random(seed);
  const std::vector<std::string> names = NamesIn(kSample);
  ASSERT_EQ(names.size(), 3u);
  std::vector<double> saved;
  ASSERT_TRUE(Load(kSample, 1, true, saved).ok());
  const std::string dir = ::testing::TempDir() + "fuzzed";
  unsigned refused = 0;
  for (unsigned i = 0; i < cases; ++i) {
    // Half of the damage is in the index.
    const std::string& name = names[random() % 2 * (1 + random() % 2)];
    const std::string text = CopyDamaged(kSample, dir, names, name, random);
    std::vector<double> values;
    const int ranks = 1 + static_cast<int>(i % 8 == 0);
    // Without verification the values may be wrong, but nothing crashes.
    if (i % 2 == 1) Load(dir, ranks, false, values).IgnoreError();
    const absl::Status loaded = Load(dir, ranks, true, values);
    EXPECT_EQ(Inspect(dir).ok(), ReadIndex(dir).ok());
    const absl::Status verified = Verify(dir).status();
    if (loaded.ok()) {
      ASSERT_EQ(values, saved)
          << "case " << i << " of seed " << seed << ", " << name << ":\n"
          << text;
      ASSERT_TRUE(verified.ok()) << verified << "\n" << text;
    } else {
      ++refused;
      ASSERT_FALSE(loaded.message().empty());
    }
  }
  std::cout << "seed " << seed << ": " << refused << " of " << cases
            << " damaged checkpoints refused\n";
  EXPECT_GT(refused, cases / 2);
}

/// Reads a Hugging Face directory like a program does.
absl::Status LoadModel(const std::string& dir) {
  const absl::StatusOr<nn::LlamaConfig> config = LoadConfig(dir);
  CH_RETURN_IF_ERROR(config.status());
  nn::Llama model(*config);
  return LoadHuggingFace(model, dir);
}

TEST(CheckpointFuzzTest, DamagedModelsAreRefusedOrRead) {
  const unsigned seed = FuzzSeed();
  const unsigned cases = FuzzCases("CROSSHATCH_CHECKPOINT_FUZZ_CASES", 400) / 4;
  std::mt19937 random(seed);
  const std::string whole = ::testing::TempDir() + "whole_model";
  fs::remove_all(whole);
  const absl::Status saved =
      StatusOfRanks(1, [&](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(const nn::LlamaConfig config, LoadConfig(kModel));
        nn::Llama model(config);
        CH_RETURN_IF_ERROR(LoadHuggingFace(model, kModel));
        return SaveHuggingFace(world, model, whole, {.max_file_bytes = 12000});
      });
  ASSERT_TRUE(saved.ok()) << saved;
  const std::vector<std::string> names = NamesIn(whole);
  ASSERT_EQ(names.size(), 4u) << "config, index and two files";
  const std::string dir = ::testing::TempDir() + "fuzzed_model";
  unsigned refused = 0;
  for (unsigned i = 0; i < cases; ++i) {
    const std::string& name = names[random() % names.size()];
    const std::string text = CopyDamaged(whole, dir, names, name, random);
    const absl::Status loaded = LoadModel(dir);
    if (loaded.ok()) continue;
    ++refused;
    ASSERT_FALSE(loaded.message().empty()) << name << ":\n" << text;
  }
  std::cout << "seed " << seed << ": " << refused << " of " << cases
            << " damaged models refused\n";
  // Weights have no hashes, and most of a config consists of independent
  // numbers.
  EXPECT_GT(refused, cases / 4);
}

TEST(CheckpointFuzzTest, RefusesTheCorpus) {
  int indexes = 0;
  int files = 0;
  int configs = 0;
  const std::string dir = FreshDir("of_corpus");
  for (const auto& entry : fs::directory_iterator(kCorpus)) {
    const std::string path = entry.path().string();
    const std::string name = entry.path().filename().string();
    absl::Status status;
    if (absl::EndsWith(name, ".safetensors")) {
      status = SafetensorsFile::Open(path).status();
      ++files;
    } else if (absl::StartsWith(name, "config-")) {
      WriteBytes(dir + "/config.json", ReadBytes(path));
      status = LoadConfig(dir).status();
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << path << ": " << status;
      ++configs;
      continue;
    } else {
      status = ParseIndex(ReadBytes(path), path).status();
      ++indexes;
    }
    EXPECT_TRUE(absl::IsDataLoss(status)) << path << ": " << status;
  }
  EXPECT_GE(indexes, 16);
  EXPECT_GE(files, 6);
  EXPECT_GE(configs, 4);
}

}  // namespace
}  // namespace crosshatch::checkpoint
