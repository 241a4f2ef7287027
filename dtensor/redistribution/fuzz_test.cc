// SPDX-License-Identifier: Apache-2.0

/// \file
/// Runs random redistributions in a one-thread interpreter of their plans and
/// compares them with a dense tensor. CROSSHATCH_FUZZ_SEED sets the seed.
/// CROSSHATCH_FUZZ_CASES sets the number of cases on one mesh; half as many are
/// between meshes.

#include <algorithm>
#include <iostream>
#include <random>
#include <utility>
#include <vector>

#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/dtensor/redistribution/cross_mesh_plan.h"
#include "crosshatch/dtensor/redistribution/interpreter.h"
#include "crosshatch/dtensor/redistribution/plan.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

constexpr int64_t kElementSize = 4;

TEST(RedistributeFuzzTest, PlansGiveWhatTheDenseTensorHolds) {
  const unsigned seed = FuzzSeed();
  const unsigned cases = FuzzCases("CROSSHATCH_FUZZ_CASES", 1000);
  std::cout << "seed " << seed << ", " << cases << " cases\n";
  std::mt19937 random(seed);
  const auto& meshes = FuzzMeshes();
  for (unsigned i = 0; i < cases; ++i) {
    const MeshLayout mesh = OracleMesh(meshes[random() % meshes.size()]);
    const int ndim = 1 + static_cast<int>(random() % 3);
    const Shape shape = RandomShape(ndim, ndim == 3 ? 5 : 10, random);
    const Layout from = RandomLayout(mesh, ndim, random);
    const Layout to = RandomLayout(mesh, ndim, random);
    const auto plan = PlanRedistribute(from, to, shape, kElementSize);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const DenseTensor dense(from, shape, random);
    ASSERT_EQ(
        dense.Mismatch(to, RunPlan(*plan, shape, kElementSize, dense.Shards())),
        "")
        << "case " << i << ", shape " << ToString(shape) << " on "
        << mesh.ToString() << ", " << from.ToStringByDim() << " to "
        << to.ToStringByDim() << " with seed " << seed << "\n"
        << plan->ToString();
    ASSERT_GE(plan->cost.bytes, plan->least_bytes) << plan->ToString();
  }
}

TEST(RedistributeFuzzTest, PlansAcrossMeshesGiveIt) {
  const unsigned seed = FuzzSeed();
  const unsigned cases = FuzzCases("CROSSHATCH_FUZZ_CASES", 1000) / 2;
  std::cout << "seed " << seed << ", " << cases << " cases\n";
  std::mt19937 random(seed);
  for (unsigned i = 0; i < cases; ++i) {
    // The fewer other ranks there are, the more the meshes have in common.
    const int world = 18 + static_cast<int>(random() % 8);
    const MeshLayout before = RandomMesh(FuzzMeshes(), world, random);
    const MeshLayout after = RandomMesh(FuzzMeshes(), world, random);
    const int ndim = static_cast<int>(random() % 4);
    const Shape shape = RandomShape(ndim, ndim == 3 ? 5 : 10, random);
    const Layout from = RandomLayout(before, ndim, random);
    const Layout to = RandomLayout(after, ndim, random);
    const auto plan = PlanCrossMesh(from, to, shape, kElementSize);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const DenseTensor dense(from, shape, random);
    ASSERT_EQ(dense.Mismatch(to, RunCrossMeshPlan(*plan, shape, kElementSize,
                                                  dense.Shards())),
              "")
        << "case " << i << ", shape " << ToString(shape) << ", "
        << from.ToStringByDim() << " to " << to.ToStringByDim() << " with seed "
        << seed << "\n"
        << plan->ToString();
    ASSERT_GE(plan->cost.bytes, plan->least_bytes) << plan->ToString();
  }
}

}  // namespace
}  // namespace crosshatch
