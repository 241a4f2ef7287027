// SPDX-License-Identifier: Apache-2.0

/// \file
/// Measures the host's time to issue work to a CUDA device. The emulated
/// runtime does nothing here, so this is the time of the library and of a few
/// locks. The driver adds to it.

#include <cstdint>
#include <vector>

#include "benchmark/benchmark.h"
#include "crosshatch/base/check.h"
#include "crosshatch/emulation/cuda_runtime.h"
#include "crosshatch/emulation/idle_runtime.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/backends/cuda/cuda_backend.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cross_entropy.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

const DeviceBackend* Backend() {
  const auto backend = CudaBackend(0);
  CH_CHECK_OK(backend.status());
  return *backend;
}

/// Counts the launches of the loop and reports the time of each.
class LaunchCounter {
 public:
  explicit LaunchCounter(benchmark::State& state)
      : state_(state), before_(emulation::CountsOfRuntime().kernels) {}
  ~LaunchCounter() {
    const auto launches =
        static_cast<double>(emulation::CountsOfRuntime().kernels - before_);
    state_.counters["launches"] =
        launches / static_cast<double>(state_.iterations());
    state_.counters["s_per_launch"] = benchmark::Counter(
        launches, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  }
  LaunchCounter(const LaunchCounter&) = delete;
  LaunchCounter& operator=(const LaunchCounter&) = delete;

 private:
  benchmark::State& state_;
  const int64_t before_;
};

void BM_Add(benchmark::State& state) {
  RankContext context({.backend = Backend()});
  const RankContextScope scope(&context);
  const NoGrad no_grad;
  const Tensor a = Zeros({64, 64});
  const emulation::IdleRuntime idle;
  const LaunchCounter counter(state);
  for (auto _ : state) benchmark::DoNotOptimize(Add(a, a));
}
BENCHMARK(BM_Add);

void BM_LlamaStep(benchmark::State& state) {
  RankContext context({.backend = Backend()});
  const RankContextScope scope(&context);
  nn::Llama model({.dim = 64,
                   .layers = 4,
                   .heads = 4,
                   .kv_heads = 4,
                   .head_dim = 16,
                   .ffn = 176,
                   .vocab = 256});
  CH_CHECK_OK(model.Materialize({.seed = 5}));
  nn::AdamW optimizer(model.Parameters(), {.lr = 1e-3});
  const std::vector<int32_t> ids(64, 3);
  const Tensor tokens = FromValues<int32_t>({1, 64}, absl::MakeConstSpan(ids));
  CH_CHECK_OK(context.Synchronize());
  const emulation::IdleRuntime idle;
  const auto step = [&] {
    const Tensor loss = CrossEntropy(model.Forward(tokens), tokens);
    CH_CHECK_OK(Backward(loss));
    CH_CHECK_OK(optimizer.Step());
    optimizer.ZeroGrad();
  };
  for (int i = 0; i < 3; ++i) step();
  const LaunchCounter counter(state);
  for (auto _ : state) step();
}
BENCHMARK(BM_LlamaStep)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace crosshatch
