// SPDX-License-Identifier: Apache-2.0
// The cost of an op on tensors so small that the kernel's time is negligible:
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

constexpr int64_t kGroupedRows = 1024;
constexpr int64_t kGroupedIn = 256;
constexpr int64_t kGroupedOut = 512;

// Groups with uneven row counts.
void BM_GroupedMatMul(benchmark::State& state) {
  const int64_t groups = state.range(0);
  const Tensor x = Ones({kGroupedRows, kGroupedIn});
  const Tensor w = Ones({groups, kGroupedIn, kGroupedOut});
  Shape offsets;
  for (int64_t g = 0; g <= groups; ++g) {
    offsets.push_back(kGroupedRows * g * g / (groups * groups));
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(GroupedMatMul(x, w, offsets));
  }
  state.counters["flops"] = benchmark::Counter(
      static_cast<double>(2 * kGroupedRows * kGroupedIn * kGroupedOut),
      benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_GroupedMatMul)->Arg(1)->Arg(8)->Arg(64);

// The same number of products with one matrix, as an upper bound for groups.
void BM_UngroupedMatMul(benchmark::State& state) {
  const Tensor x = Ones({kGroupedRows, kGroupedIn});
  const Tensor w = Ones({kGroupedIn, kGroupedOut});
  for (auto _ : state) benchmark::DoNotOptimize(MatMul(x, w));
  state.counters["flops"] = benchmark::Counter(
      static_cast<double>(2 * kGroupedRows * kGroupedIn * kGroupedOut),
      benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_UngroupedMatMul);

void BM_MulRecorded(benchmark::State& state) {
  const Tensor a = Ones({8, 8}).set_requires_grad(true);
  for (auto _ : state) benchmark::DoNotOptimize(Mul(a, a));
}
BENCHMARK(BM_MulRecorded);

// Measures forward and backward per op.
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
