// SPDX-License-Identifier: Apache-2.0

/// \file
/// Measures checkpoints in a training run of a Llama model (d=512, L=6, V=4096,
/// two by two rank threads): the time of a save, of a load, and the slowdown by
/// an asynchronous save.
///
/// usage: checkpoint_benchmark DIR [EVERY [ROUNDS]]
///
/// Prints the CPU time of the process, with all ranks and writers, as well as
/// wall time. If training keeps all cores busy, CPU time is the cost of a save.
///
/// In each of ROUNDS (5) rounds, EVERY (20) steps without a save alternate with
/// as many of which the first saves, so that other load affects both. A saving
/// step is the save and the next step, during which elements are copied. Its
/// extra time is relative to the round's median step.

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/async_save.h"
#include "crosshatch/checkpoint/checkpoint.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/extensions/dtensor_extensions.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/module_state.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tp/llama_plan.h"
#include "crosshatch/tp/parallelize_module.h"

namespace ch = crosshatch;

namespace {

using Clock = std::chrono::steady_clock;

struct Settings {
  std::string dir;
  int every = 20;
  int rounds = 5;
};

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) +
           static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2,
                   values.end());
  return values[values.size() / 2];
}

double Sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

ch::Tensor Tokens(int64_t seed) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < 2 * 256; ++i) {
    tokens.push_back(static_cast<int32_t>((seed + i * i * 31) % 4096));
  }
  return ch::FromValues<int32_t>({2, 256}, tokens);
}

absl::Status Run(ch::World& world, const Settings& settings) {
  CH_ASSIGN_OR_RETURN(ch::DeviceMesh mesh,
                      ch::InitDeviceMesh(world, {{"fsdp", 2}, {"tp", 2}}));
  CH_ASSIGN_OR_RETURN(ch::DeviceMesh tp, mesh.Slice("tp"));
  CH_ASSIGN_OR_RETURN(ch::DeviceMesh fsdp, mesh.Slice("fsdp"));
  ch::nn::Llama model(
      {.dim = 512, .layers = 6, .heads = 8, .ffn = 1408, .vocab = 4096});
  CH_RETURN_IF_ERROR(
      ch::tp::ParallelizeModule(model, tp, ch::tp::LlamaPlan(model.config())));
  ch::fsdp::FullyShardOptions options;
  options.extension = ch::DTensorExtensions::Create();
  for (ch::nn::Module& block : model.blocks()) {
    CH_RETURN_IF_ERROR(ch::fsdp::FullyShard(block, fsdp, options));
  }
  CH_RETURN_IF_ERROR(ch::fsdp::FullyShard(model, fsdp, options));
  CH_RETURN_IF_ERROR(model.Materialize({.seed = 7}));
  ch::nn::AdamW optimizer(model.Parameters(), {.lr = 1e-4});
  ch::nn::ModuleState parameters(model);
  ch::nn::CombinedState run(
      {{"model", &parameters}, {"optimizer", &optimizer}});

  int64_t steps = 0;
  const auto train = [&](int count) -> absl::StatusOr<std::vector<double>> {
    std::vector<double> seconds;
    for (int i = 0; i < count; ++i, ++steps) {
      const auto start = Clock::now();
      const ch::Tensor tokens = Tokens(steps * 2 + *fsdp.index(0));
      CH_RETURN_IF_ERROR(
          ch::Backward(ch::CrossEntropy(model.Forward(tokens), tokens)));
      CH_RETURN_IF_ERROR(optimizer.Step());
      optimizer.ZeroGrad();
      CH_RETURN_IF_ERROR(world.context().Synchronize());
      seconds.push_back(SecondsSince(start));
    }
    return seconds;
  };

  ch::checkpoint::AsyncCheckpointer saver(world);
  CH_RETURN_IF_ERROR(train(2).status());
  CH_RETURN_IF_ERROR(saver.Save(run, settings.dir, /*overwrite=*/true));
  CH_RETURN_IF_ERROR(saver.Wait());
  std::vector<double> plain;
  std::vector<double> calls;
  std::vector<double> blocked;
  std::vector<double> of_step;
  std::vector<double> of_steps;
  std::vector<double> plain_cpu;
  std::vector<double> save_cpu;
  for (int round = 0; round < settings.rounds; ++round) {
    const double cpu_start = CpuSeconds();
    CH_ASSIGN_OR_RETURN(const std::vector<double> without,
                        train(settings.every));
    const double cpu_plain = CpuSeconds();
    const auto start = Clock::now();
    CH_RETURN_IF_ERROR(saver.Save(run, settings.dir, /*overwrite=*/true));
    calls.push_back(SecondsSince(start));
    CH_ASSIGN_OR_RETURN(const std::vector<double> with, train(settings.every));
    blocked.push_back(absl::ToDoubleSeconds(saver.blocked_duration()));
    CH_RETURN_IF_ERROR(saver.Wait());
    plain_cpu.push_back((cpu_plain - cpu_start) / settings.every);
    save_cpu.push_back(CpuSeconds() - cpu_plain - (cpu_plain - cpu_start));
    plain.push_back(Median(without));
    of_step.push_back(calls.back() + with[0] - plain.back());
    of_steps.push_back((calls.back() + Sum(with)) / Sum(without) - 1);
  }
  const auto save_start = Clock::now();
  CH_RETURN_IF_ERROR(ch::checkpoint::SaveCheckpoint(world, run, settings.dir,
                                                    {.overwrite = true}));
  const double save = SecondsSince(save_start);
  const auto load_start = Clock::now();
  ch::checkpoint::LoadStats stats;
  CH_RETURN_IF_ERROR(ch::checkpoint::LoadCheckpoint(world, run, settings.dir,
                                                    {.stats = &stats}));
  const double load = SecondsSince(load_start);
  if (world.rank() != 0) return absl::OkStatus();
  CH_ASSIGN_OR_RETURN(const ch::nn::StateDict state, run.State());
  CH_ASSIGN_OR_RETURN(const auto plan, ch::checkpoint::PlanOf(world, state));
  std::printf(
      "%.1f MB; rank 0 writes %.1f MB and reads %.1f\n"
      "save: %.0f ms, load: %.0f ms\n"
      "a step: %.1f ms\n"
      "a step that saves beside: %+.1f ms, %+.1f %% (median of %d; the call "
      "took %.1f ms, and held up %.1f ms in all)\n"
      "%d steps of which one saves beside: %+.1f %%\n"
      "processor time: a step %.0f ms, a save %.0f ms: %+.1f %% of %d steps\n",
      static_cast<double>(plan.index.bytes()) * 1e-6,
      static_cast<double>(plan.BytesOf(0)) * 1e-6,
      static_cast<double>(stats.bytes_read) * 1e-6, save * 1e3, load * 1e3,
      Median(plain) * 1e3, Median(of_step) * 1e3,
      100 * Median(of_step) / Median(plain), settings.rounds,
      Median(calls) * 1e3, Median(blocked) * 1e3, settings.every,
      Median(of_steps) * 100, Median(plain_cpu) * 1e3, Median(save_cpu) * 1e3,
      100 * Median(save_cpu) / (Median(plain_cpu) * settings.every),
      settings.every);
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4) {
    std::fprintf(stderr, "usage: checkpoint_benchmark DIR [EVERY [ROUNDS]]\n");
    return 2;
  }
  Settings settings{.dir = std::filesystem::absolute(argv[1]).string()};
  if (argc > 2) settings.every = std::max(1, std::atoi(argv[2]));
  if (argc > 3) settings.rounds = std::max(1, std::atoi(argv[3]));
  const absl::Status status =
      ch::RunLocal(4, [&](ch::World& world) { return Run(world, settings); });
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
