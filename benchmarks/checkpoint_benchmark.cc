// SPDX-License-Identifier: Apache-2.0

/// \file
/// What checkpoints cost a training run of a Llama model (d=512, L=6, V=4096,
/// two by two rank threads): the time of a save, of a load, and by how much a
/// save beside training makes it slower.
///
/// usage: checkpoint_benchmark DIR [EVERY [ROUNDS]]
///
/// Wall time tells little on a machine that does other things, so the processor
/// time of the process, of all ranks and writers, is printed as well: where
/// training keeps all cores busy it is what a save costs.
///
/// Steps without a save and EVERY (20) steps of which the first saves take
/// turns, ROUNDS (5) times, so that what else the machine does meets both.

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/async_save.h"
#include "crosshatch/checkpoint/checkpoint.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/extensions/dtensor_extensions.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/adamw.h"
#include "crosshatch/nn/models/llama.h"
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

/// Processor time of this process.
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

ch::Tensor Tokens(int64_t seed) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < 2 * 256; ++i) {
    tokens.push_back(static_cast<int32_t>((seed + i * i * 31) % 4096));
  }
  return ch::FromValues<int32_t>({2, 256}, tokens);
}

/// The parameters, and for each two tensors like it, as AdamW keeps them.
absl::StatusOr<ch::nn::StateDict> StateOf(ch::nn::Module& model) {
  ch::nn::StateDict state;
  for (const ch::nn::NamedParameter& named : model.NamedParameters()) {
    const ch::Tensor& data = named.parameter->data();
    CH_RETURN_IF_ERROR(state.Add(absl::StrCat("model.", named.name), data));
    for (const char* moment : {"m", "v"}) {
      CH_RETURN_IF_ERROR(state.Add(
          absl::StrCat("optimizer.", moment, ".", named.name),
          ch::MakeDTensor(ch::Zeros(ch::LocalTensor(data).sizes()),
                          ch::MeshOf(data), ch::LayoutOf(data), data.sizes())));
    }
  }
  return state;
}

absl::Status Run(ch::World& world, const Settings& settings) {
  CH_ASSIGN_OR_RETURN(ch::DeviceMesh mesh,
                      ch::InitDeviceMesh(world, {{"fsdp", 2}, {"tp", 2}}));
  CH_ASSIGN_OR_RETURN(ch::DeviceMesh tp, mesh.Slice("tp"));
  CH_ASSIGN_OR_RETURN(ch::DeviceMesh fsdp, mesh.Slice("fsdp"));
  ch::nn::Llama model(
      {.dim = 512, .layers = 6, .heads = 8, .ffn = 1408, .vocab = 4096});
  CH_RETURN_IF_ERROR(ch::tp::ParallelizeModule(model, tp, ch::tp::LlamaPlan()));
  ch::fsdp::FullyShardOptions options;
  options.extension = ch::DTensorExtensions::Create();
  for (ch::nn::Module& block : model.blocks()) {
    CH_RETURN_IF_ERROR(ch::fsdp::FullyShard(block, fsdp, options));
  }
  CH_RETURN_IF_ERROR(ch::fsdp::FullyShard(model, fsdp, options));
  CH_RETURN_IF_ERROR(model.Materialize({.seed = 7}));
  ch::nn::AdamW optimizer(model.Parameters(), {.lr = 1e-4});
  CH_ASSIGN_OR_RETURN(ch::nn::StateDict state, StateOf(model));

  int64_t steps = 0;
  const auto train = [&](int count) -> absl::StatusOr<double> {
    const auto start = Clock::now();
    for (int i = 0; i < count; ++i, ++steps) {
      const ch::Tensor tokens = Tokens(steps * 2 + *fsdp.index(0));
      CH_RETURN_IF_ERROR(
          ch::Backward(ch::CrossEntropy(model.Forward(tokens), tokens)));
      CH_RETURN_IF_ERROR(optimizer.Step());
      optimizer.ZeroGrad();
    }
    CH_RETURN_IF_ERROR(world.context().Synchronize());
    return SecondsSince(start);
  };

  ch::checkpoint::AsyncCheckpointer saver(world);
  CH_RETURN_IF_ERROR(train(2).status());
  CH_RETURN_IF_ERROR(saver.Save(state, settings.dir, /*overwrite=*/true));
  CH_RETURN_IF_ERROR(saver.Wait());
  std::vector<double> plain;
  std::vector<double> saving;
  std::vector<double> calls;
  std::vector<double> extra;
  std::vector<double> plain_cpu;
  std::vector<double> save_cpu;
  for (int round = 0; round < settings.rounds; ++round) {
    const double cpu_start = CpuSeconds();
    CH_ASSIGN_OR_RETURN(const double without, train(settings.every));
    const double cpu_plain = CpuSeconds();
    const auto start = Clock::now();
    CH_RETURN_IF_ERROR(saver.Save(state, settings.dir, /*overwrite=*/true));
    calls.push_back(SecondsSince(start));
    CH_ASSIGN_OR_RETURN(const double with, train(settings.every));
    CH_RETURN_IF_ERROR(saver.Wait());
    plain_cpu.push_back((cpu_plain - cpu_start) / settings.every);
    save_cpu.push_back(CpuSeconds() - cpu_plain - (cpu_plain - cpu_start));
    plain.push_back(without / settings.every);
    saving.push_back((calls.back() + with) / settings.every);
    extra.push_back(saving.back() / plain.back() - 1);
  }
  const auto save_start = Clock::now();
  CH_RETURN_IF_ERROR(ch::checkpoint::SaveCheckpoint(world, state, settings.dir,
                                                    {.overwrite = true}));
  const double save = SecondsSince(save_start);
  const auto load_start = Clock::now();
  ch::checkpoint::LoadStats stats;
  CH_RETURN_IF_ERROR(ch::checkpoint::LoadCheckpoint(world, state, settings.dir,
                                                    {.stats = &stats}));
  const double load = SecondsSince(load_start);
  if (world.rank() != 0) return absl::OkStatus();
  CH_ASSIGN_OR_RETURN(const auto plan, ch::checkpoint::PlanOf(world, state));
  std::printf(
      "%.1f MB; rank 0 writes %.1f MB and reads %.1f\n"
      "save: %.0f ms, load: %.0f ms\n"
      "a step: %.1f ms; a call of an asynchronous save: %.1f ms\n"
      "a step of %d of which one saves: %.1f ms, %+.1f %% (median of %d)\n"
      "processor time: a step %.0f ms, a save %.0f ms: %+.1f %% of %d steps\n",
      static_cast<double>(plan.index.bytes()) * 1e-6,
      static_cast<double>(plan.BytesOf(0)) * 1e-6,
      static_cast<double>(stats.bytes_read) * 1e-6, save * 1e3, load * 1e3,
      Median(plain) * 1e3, Median(calls) * 1e3, settings.every,
      Median(saving) * 1e3, Median(extra) * 100, settings.rounds,
      Median(plain_cpu) * 1e3, Median(save_cpu) * 1e3,
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
