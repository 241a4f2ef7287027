// SPDX-License-Identifier: Apache-2.0
// What a call of an op costs on tensors so small that the kernel hardly counts:
//     bazel run //tensor/ops:ops_benchmark
#include "benchmark/benchmark.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

void BM_Add(benchmark::State& state) {
  const Tensor a = Ones({8, 8});
  for (auto _ : state) benchmark::DoNotOptimize(Add(a, a));
}
BENCHMARK(BM_Add);

void BM_AddBroadcast(benchmark::State& state) {
  const Tensor a = Ones({8, 8});
  const Tensor b = Ones({8});
  for (auto _ : state) benchmark::DoNotOptimize(Add(a, b));
}
BENCHMARK(BM_AddBroadcast);

void BM_AddInPlace(benchmark::State& state) {
  const Tensor a = Ones({8, 8});
  for (auto _ : state) AddInPlace(a, a);
}
BENCHMARK(BM_AddInPlace);

void BM_View(benchmark::State& state) {
  const Tensor a = Ones({8, 8});
  const NoGrad no_grad;
  for (auto _ : state) benchmark::DoNotOptimize(View(a, {4, 16}));
}
BENCHMARK(BM_View);

void BM_MatMul(benchmark::State& state) {
  const Tensor a = Ones({8, 8});
  for (auto _ : state) benchmark::DoNotOptimize(MatMul(a, a));
}
BENCHMARK(BM_MatMul);

void BM_MulRecorded(benchmark::State& state) {
  const Tensor a = Ones({8, 8}).set_requires_grad(true);
  for (auto _ : state) benchmark::DoNotOptimize(Mul(a, a));
}
BENCHMARK(BM_MulRecorded);

// Per op, forward and backward.
void BM_ChainAndBackward(benchmark::State& state) {
  constexpr int kOps = 100;
  const Tensor a = Ones({8, 8}).set_requires_grad(true);
  for (auto _ : state) {
    Tensor x = a;
    for (int i = 0; i < kOps; ++i) x = Mul(x, 1.0);
    benchmark::DoNotOptimize(Backward(Sum(x)));
  }
  state.SetItemsProcessed(state.iterations() * kOps);
}
BENCHMARK(BM_ChainAndBackward);

}  // namespace
}  // namespace crosshatch
