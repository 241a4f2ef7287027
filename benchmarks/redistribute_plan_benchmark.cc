// SPDX-License-Identifier: Apache-2.0
//
// Time to plan a redistribution for the first time on meshes of large jobs; a
// run caches its plans. Each line is a mesh and a pair of layouts of an 8192 x
// 8192 tensor. "random" uses random pairs of layouts of 1 to 3 dims and also
// prints the maximal time.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/dtensor/redistribution/cross_mesh_plan.h"
#include "crosshatch/dtensor/redistribution/plan.h"
#include "crosshatch/dtensor/redistribution/step.h"

namespace crosshatch {
namespace {

constexpr int64_t kElementSize = 2;

int64_t PlanOnce(const Layout& from, const Layout& to, ShapeView shape) {
  const auto plan = PlanRedistribute(from, to, shape, kElementSize);
  CH_CHECK_OK(plan.status());
  const MeshCoordinate last = from.mesh().CoordinateAt(from.mesh().size() - 1);
  int64_t elements = 0;
  for (const RedistributeStep& step : plan->steps) {
    for (const Box& box : StepTransfers(step, shape, last).receives) {
      elements += box.numel();
    }
  }
  return elements;
}

void Pair(benchmark::State& state, const std::vector<int>& mesh,
          const std::string& from, const std::string& to) {
  const MeshLayout layout = OracleMesh(mesh);
  const Layout before = LayoutOf(layout, 2, from);
  const Layout after = LayoutOf(layout, 2, to);
  const Shape shape = {8192, 8192};
  for (auto _ : state) {
    benchmark::DoNotOptimize(PlanOnce(before, after, shape));
  }
}

void Random(benchmark::State& state, const std::vector<int>& mesh) {
  using Clock = std::chrono::steady_clock;
  const MeshLayout layout = OracleMesh(mesh);
  std::mt19937 random(5);
  Clock::duration longest = {};
  std::string which;
  for (auto _ : state) {
    state.PauseTiming();
    const int ndim = 1 + static_cast<int>(random() % 3);
    const Shape shape(ndim, ndim == 1 ? 1 << 20 : 4096);
    const Layout from = RandomLayout(layout, ndim, random);
    const Layout to = RandomLayout(layout, ndim, random);
    state.ResumeTiming();
    const Clock::time_point start = Clock::now();
    benchmark::DoNotOptimize(PlanOnce(from, to, shape));
    const Clock::duration took = Clock::now() - start;
    if (took > longest) {
      longest = took;
      which = absl::StrCat(ndim, "d ", from.ToStringByDim(), " to ",
                           to.ToStringByDim());
    }
  }
  state.counters["longest_ms"] =
      std::chrono::duration<double, std::milli>(longest).count();
  state.SetLabel(which);
}

// Plans a move to a disjoint mesh.
void Across(benchmark::State& state, const std::vector<int>& from,
            const std::vector<int>& to) {
  const MeshLayout before = OracleMesh(from);
  std::vector<int> others;
  int ranks = 1;
  for (int size : to) ranks *= size;
  for (int i = 0; i < ranks; ++i) others.push_back(before.size() + i);
  const MeshLayout after = OracleMesh(to, others);
  const Shape shape = {8192, 8192};
  const Layout source = LayoutOf(before, 2, "[S(0),R]");
  const Layout destination = LayoutOf(after, 2, "[S(1),S(0)]");
  for (auto _ : state) {
    const auto plan = PlanCrossMesh(source, destination, shape, kElementSize);
    CH_CHECK_OK(plan.status());
    benchmark::DoNotOptimize(
        CrossMeshTransfersOf(*plan, shape, plan->ranks.back()));
  }
}

void Register() {
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {"[S(0),S(0)]", "[R,R]"},        {"[S(0),S(1)]", "[S(1),S(0)]"},
      {"[_S(0,8),S(0)]", "[R,S(0)]"},  {"[P(sum),S(0)]", "[_S(0,8),S(0)]"},
      {"[P(sum),P(sum)]", "[S(0),R]"}, {"[P(sum),S(0)]", "[S(0),R]"},
  };
  for (const std::vector<int>& mesh :
       {std::vector<int>{8, 8}, {64, 8}, {128, 8, 2}}) {
    const std::string name = OracleMesh(mesh).ToString();
    for (auto [from, to] : pairs) {
      if (mesh.size() == 3) {
        from.insert(from.size() - 1, ",R");
        to.insert(to.size() - 1, ",S(1)");
      }
      benchmark::RegisterBenchmark(
          absl::StrCat(name, " ", from, " -> ", to).c_str(),
          [mesh, from = from, to = to](benchmark::State& state) {
            Pair(state, mesh, from, to);
          });
    }
    benchmark::RegisterBenchmark(
        absl::StrCat(name, " random").c_str(),
        [mesh](benchmark::State& state) { Random(state, mesh); })
        ->Iterations(500);
  }
  benchmark::RegisterBenchmark("mesh(dp=64, tp=8) to mesh(dp=32, tp=4)",
                               [](benchmark::State& state) {
                                 Across(state, {64, 8}, {32, 4});
                               });
  benchmark::RegisterBenchmark("mesh(dp=128, tp=16) to mesh(dp=64, tp=16)",
                               [](benchmark::State& state) {
                                 Across(state, {128, 16}, {64, 16});
                               });
}

const bool kRegistered = (Register(), true);

}  // namespace
}  // namespace crosshatch
