// SPDX-License-Identifier: Apache-2.0

/// \file
/// Compares train_lm --device=cuda on emulated devices with the CPU.

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/emulation/cuda_runtime.h"
#include "crosshatch/examples/token_source.h"
#include "crosshatch/examples/train.h"
#include "crosshatch/examples/train_options.h"
#include "crosshatch/launch/run.h"
#include "crosshatch/tensor/backends/cuda/cuda_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using examples::TokenSource;
using examples::TrainOptions;

std::string Path(const std::string& name) {
  return absl::StrCat(::testing::TempDir(), "/", name);
}

// Trains as train_lm does with these flags.
// \returns the metrics of its `steps` steps.
std::vector<nlohmann::json> MetricsWith(const std::vector<std::string>& flags,
                                        size_t steps = 4) {
  // Reset the flags for the next call.
  const absl::FlagSaver saver;
  const std::string metrics = Path("metrics.jsonl");
  const std::string text = Path("text");
  std::filesystem::remove(metrics);
  std::ofstream(text) << "A small text to learn, which goes on and on and on, "
                         "and then once more, and has an end.";
  std::vector<std::string> arguments = {
      "train_lm",       "--text=" + text,   "--metrics=" + metrics,
      "--dim=12",       "--layers=2",       "--heads=2",
      "--ffn=10",       "--global_batch=4", "--seq_len=6",
      "--steps=4",      "--vocab=128",      "--timeout=120s",
      "--engine=local", "--seed=3"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  const auto options =
      examples::ParseTrainOptions(static_cast<int>(argv.size()), argv.data());
  EXPECT_TRUE(options.ok()) << options.status();
  const auto tokens = TokenSource::FromText({text});
  EXPECT_TRUE(tokens.ok()) << tokens.status();
  if (!options.ok() || !tokens.ok()) return {};
  RunOptions run = options->run;
  if (run.engine == EngineKind::kFake) {
    run.job.backends = {&CudaBackendForDryRuns()};
  } else if (run.device == Device::Kind::kCuda) {
    for (int i = 0; CudaBackend(i).ok(); ++i) {
      run.job.backends.push_back(*CudaBackend(i));
    }
  }
  const int status = Run(
      [&](World& world) { return examples::Train(world, *options, *tokens); },
      run);
  EXPECT_EQ(status, 0);
  std::vector<nlohmann::json> lines;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) {
    lines.push_back(nlohmann::json::parse(line));
  }
  EXPECT_EQ(lines.size(), steps);
  return lines;
}

std::vector<double> LossesWith(const std::vector<std::string>& flags,
                               size_t steps = 4) {
  std::vector<double> losses;
  for (const nlohmann::json& line : MetricsWith(flags, steps)) {
    losses.push_back(line["loss"]);
  }
  return losses;
}

// Compares the losses of a run with the same flags on each device.
void ExpectEqualLosses(std::vector<std::string> flags, double relative_bound) {
  flags.push_back("--device=cpu");
  const std::vector<double> expected = LossesWith(flags);
  const int64_t kernels = emulation::CountsOfRuntime().kernels;
  flags.back() = "--device=cuda";
  const std::vector<double> losses = LossesWith(flags);
  EXPECT_GT(emulation::CountsOfRuntime().kernels, kernels + 1000)
      << "it did not run on the devices";
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], expected[i], relative_bound * expected[i])
        << "step " << i;
  }
  EXPECT_LT(losses.back(), losses.front());
}

// The bound of tests/conformance for losses of all implementations.
constexpr double kLossBound = 2e-6;

TEST(CudaLaunchTest, TrainsAMeshAsTheCpuDoes) {
  ExpectEqualLosses({"--mesh=fsdp:2,tp:2"}, kLossBound);
}

// Of five steps, two run, one is captured and two are replays.
TEST(CudaLaunchTest, ReplaysTheGradientsOfAStep) {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--mesh=fsdp:1"},
        {"--mesh=fsdp:1", "--accumulate=2", "--dtype=bfloat16",
         "--recompute"}}) {
    std::vector<std::string> flags = more;
    flags.insert(flags.end(),
                 {"--device=cuda", "--steps=5", "--cuda_graphs=off"});
    const std::vector<double> expected = LossesWith(flags, 5);
    const int64_t launches = emulation::CountsOfRuntime().graph_launches;
    for (const char* mode : {"on", "auto"}) {
      flags.back() = absl::StrCat("--cuda_graphs=", mode);
      EXPECT_EQ(LossesWith(flags, 5), expected) << mode;
    }
    EXPECT_EQ(emulation::CountsOfRuntime().graph_launches, launches + 6);
  }
}

// Collectives of rank threads cannot be captured: what was captured before the
// first one is launched once by each rank.
TEST(CudaLaunchTest, RunsStepsThatCannotBeReplayed) {
  const std::vector<std::string> flags = {"--mesh=fsdp:2", "--device=cuda"};
  const std::vector<double> expected = LossesWith(flags);
  const int64_t launches = emulation::CountsOfRuntime().graph_launches;
  EXPECT_EQ(
      LossesWith({"--mesh=fsdp:2", "--device=cuda", "--cuda_graphs=auto"}),
      expected);
  EXPECT_EQ(emulation::CountsOfRuntime().graph_launches, launches + 2);
}

// Weights and moments are in pinned host memory.
TEST(CudaLaunchTest, TrainsOffloadedAndRecomputed) {
  ExpectEqualLosses({"--mesh=fsdp:2", "--offload", "--recompute"}, kLossBound);
}

TEST(CudaLaunchTest, RanksShareADevice) {
  ExpectEqualLosses({"--mesh=fsdp:3"}, kLossBound);
}

// Four steps, then the last two again from a checkpoint, on devices and on the
// CPU. Tensors are in device memory or, if offloaded, in host memory.
TEST(CudaLaunchTest, ResumesFromACheckpoint) {
  for (const std::string how :
       {"--save_async=false", "--save_async", "--offload"}) {
    const std::string checkpoints = Path("run" + how);
    const auto losses = [&](const std::string& mesh, const std::string& device,
                            bool resumes) {
      std::filesystem::remove_all(checkpoints + "/step-000004");
      return LossesWith({"--mesh=" + mesh, "--device=" + device, how,
                         "--checkpoints=" + checkpoints, "--save_every=2",
                         resumes ? "--resume" : "--noresume"},
                        resumes ? 2 : 4);
    };
    const std::vector<double> whole = losses("fsdp:2,tp:2", "cuda", false);
    ASSERT_EQ(whole.size(), 4u);
    for (const auto& [mesh, device] : {std::pair{"fsdp:2,tp:2", "cuda"},
                                       {"fsdp:3", "cuda"},
                                       {"tp:2", "cpu"}}) {
      const std::vector<double> again = losses(mesh, device, true);
      ASSERT_EQ(again.size(), 2u) << how;
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_NEAR(again[i], whole[2 + i], kLossBound * whole[2 + i])
            << how << " on " << mesh << " of " << device << ", step " << i;
      }
    }
  }
}

TEST(CudaLaunchTest, ADryRunNeedsNoDevice) {
  const std::vector<nlohmann::json> real =
      MetricsWith({"--mesh=fsdp:2,tp:2", "--device=cuda"});
  const emulation::RuntimeCounts before = emulation::CountsOfRuntime();
  const std::vector<nlohmann::json> dry =
      MetricsWith({"--mesh=fsdp:2,tp:2", "--device=cuda", "--engine=fake"});
  const emulation::RuntimeCounts after = emulation::CountsOfRuntime();
  EXPECT_EQ(after.kernels, before.kernels);
  EXPECT_EQ(after.allocations, before.allocations);
  ASSERT_EQ(dry.size(), real.size());
  for (size_t i = 0; i < dry.size(); ++i) {
    EXPECT_TRUE(dry[i]["loss"].is_null());
    EXPECT_EQ(dry[i]["moved"], real[i]["moved"]);
    EXPECT_EQ(dry[i]["copied_bytes"], real[i]["copied_bytes"]);
    for (const auto& [name, bytes] : real[i]["peak_bytes"].items()) {
      // The ranks of a dry run are processes, which need buffers for sums.
      if (name == "communication" || name == "total") {
        EXPECT_GE(dry[i]["peak_bytes"][name], bytes) << name;
      } else {
        EXPECT_EQ(dry[i]["peak_bytes"][name], bytes) << name;
      }
    }
  }
}

// Parameters and activations are bfloat16; weights and reduced gradients are
// float32. A loss is the mean of log-sum-exp(z) - z[target] over rows, and
// moves by at most twice the error of the logits z. Some 10 roundings of 2^-9
// per layer and as many at the ends make 30 for two layers. Logits are at most
// 1, since the loss is near that of equal odds.
TEST(CudaLaunchTest, TrainsInMixedPrecisionAsTheCpuInFloat32) {
  const double bound = 2 * 30 * 0x1p-9;
  const std::vector<double> exact =
      LossesWith({"--mesh=fsdp:2,tp:2", "--device=cpu", "--dtype=float32"});
  const std::vector<double> mixed =
      LossesWith({"--mesh=fsdp:2,tp:2", "--device=cuda", "--dtype=bfloat16"});
  ASSERT_EQ(mixed.size(), exact.size());
  bool differs = false;
  for (size_t i = 0; i < mixed.size(); ++i) {
    EXPECT_NEAR(mixed[i], exact[i], bound) << "step " << i;
    // The computation was not in float32.
    differs |= std::abs(mixed[i] - exact[i]) > kLossBound * exact[i];
  }
  EXPECT_TRUE(differs);
  EXPECT_LT(mixed.back(), mixed.front());
}

// Weights, moments and reductions stay float32. Gathered parameters, and their
// communication, take half the bytes.
TEST(CudaLaunchTest, MixedPrecisionKeepsWeightsAndReducesInFloat32) {
  const nlohmann::json exact =
      MetricsWith({"--mesh=fsdp:2", "--device=cuda", "--dtype=float32"})[0];
  const nlohmann::json mixed =
      MetricsWith({"--mesh=fsdp:2", "--device=cuda", "--dtype=bfloat16"})[0];
  const auto peak = [](const nlohmann::json& line, const char* name) {
    return line["peak_bytes"][name].get<int64_t>();
  };
  const auto moved = [](const nlohmann::json& line, const char* kind) {
    return line["moved"]["fsdp"][kind]["bytes"].get<int64_t>();
  };
  for (const char* name : {"parameter", "optimizer_state"}) {
    EXPECT_GT(peak(mixed, name), 0) << name;
    EXPECT_EQ(peak(mixed, name), peak(exact, name)) << name;
  }
  EXPECT_GT(moved(mixed, "reduce_scatter"), 0);
  EXPECT_EQ(moved(mixed, "reduce_scatter"), moved(exact, "reduce_scatter"));
  EXPECT_EQ(2 * moved(mixed, "all_gather"), moved(exact, "all_gather"));
  EXPECT_LT(peak(mixed, "gathered_parameter"),
            peak(exact, "gathered_parameter"));
  EXPECT_LT(peak(mixed, "activation"), peak(exact, "activation"));
}

}  // namespace
}  // namespace crosshatch
