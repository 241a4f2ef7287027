// SPDX-License-Identifier: Apache-2.0
//
// What a distributed tensor adds to the time of an op: adds and matmuls of 8x8,
// on plain tensors and on distributed ones that need no communication.

#include <benchmark/benchmark.h>

#include "absl/status/status.h"
#include "crosshatch/base/check.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/matmul.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

using BinaryFunction = Tensor (*)(const Tensor&, const Tensor&);

Tensor AddOf(const Tensor& a, const Tensor& b) { return Add(a, b); }
Tensor MatMulOf(const Tensor& a, const Tensor& b) { return MatMul(a, b); }

// Times `run` on 8x8 operands as the one rank of a world.
void Time(benchmark::State& state, BinaryFunction run, bool distributed) {
  const absl::Status status = RunLocal(1, [&](World& world) -> absl::Status {
    const auto mesh = InitDeviceMesh(world, {{"tp", 1}});
    NoGrad no_grad;
    Tensor a = Full({8, 8}, 1);
    Tensor b = Full({8, 8}, 2);
    if (distributed) {
      const Layout layout = Layout::Replicated(mesh->layout(), 2);
      a = DistributeTensor(a, *mesh, layout);
      b = DistributeTensor(b, *mesh, layout);
    }
    for (auto _ : state) benchmark::DoNotOptimize(run(a, b));
    return absl::OkStatus();
  });
  CH_CHECK_OK(status);
}

BENCHMARK_CAPTURE(Time, add_plain, AddOf, false);
BENCHMARK_CAPTURE(Time, add_distributed, AddOf, true);
BENCHMARK_CAPTURE(Time, matmul_plain, MatMulOf, false);
BENCHMARK_CAPTURE(Time, matmul_distributed, MatMulOf, true);

}  // namespace
}  // namespace crosshatch
