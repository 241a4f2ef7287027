// SPDX-License-Identifier: Apache-2.0
// The cost of an op before its kernel starts:
//     bazel run //tensor:tensor_benchmark
#include <atomic>
#include <memory>

#include "benchmark/benchmark.h"
#include "crosshatch/tensor/allocator.h"
#include "crosshatch/tensor/backends/cpu/cpu_stream.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

void BM_LaunchInline(benchmark::State& state) {
  Stream& stream = RankContext::Current().compute_stream();
  int64_t runs = 0;
  for (auto _ : state) {
    stream.Launch([&](KernelContext&) { benchmark::DoNotOptimize(++runs); });
  }
}
BENCHMARK(BM_LaunchInline);

void BM_AllocateFromCache(benchmark::State& state) {
  RankContext& context = RankContext::Current();
  for (auto _ : state) {
    Block block = context.allocator().Allocate(
        state.range(0), MemoryClass::kActivation, context.compute_stream());
    benchmark::DoNotOptimize(block.data());
  }
}
BENCHMARK(BM_AllocateFromCache)->Arg(64)->Arg(1 << 20);

void BM_Empty(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(Empty({16, 16}));
}
BENCHMARK(BM_Empty);

void BM_RankContextCurrent(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(&RankContext::Current());
}
BENCHMARK(BM_RankContextCurrent);

// Issues to a queue without waiting for it.
void BM_LaunchQueued(benchmark::State& state) {
  auto stream = MakeQueueStream("side", {});
  int64_t runs = 0;
  for (auto _ : state) {
    for (int i = 0; i < 1000; ++i)
      stream->Launch([&](KernelContext&) { ++runs; });
    state.PauseTiming();
    stream->Synchronize();
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations() * 1000);
}
BENCHMARK(BM_LaunchQueued);

// Sends a task to a sleeping queue and waits for it.
void BM_QueueRoundTrip(benchmark::State& state) {
  auto stream = MakeQueueStream("side", {});
  for (auto _ : state) {
    stream->Launch([](KernelContext&) {});
    stream->Synchronize();
  }
}
BENCHMARK(BM_QueueRoundTrip)->UseRealTime();

}  // namespace
}  // namespace crosshatch
