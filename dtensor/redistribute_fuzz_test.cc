// SPDX-License-Identifier: Apache-2.0

/// \file
/// Random redistributions, run by a one-thread interpreter of their plans,
/// beside a dense tensor. CROSSHATCH_FUZZ_SEED sets the seed,
/// CROSSHATCH_FUZZ_CASES the number of cases.

#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "crosshatch/dtensor/redistribute_interpreter.h"
#include "crosshatch/dtensor/redistribute_oracle.h"
#include "crosshatch/dtensor/redistribute_plan.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

constexpr int64_t kElementSize = 4;

unsigned FromEnvironment(const char* name, unsigned otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr
             ? otherwise
             : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
}

TEST(RedistributeFuzzTest, PlansGiveWhatTheDenseTensorHolds) {
  const unsigned seed = FromEnvironment("CROSSHATCH_FUZZ_SEED", 20240607);
  const unsigned cases = FromEnvironment("CROSSHATCH_FUZZ_CASES", 1000);
  std::cout << "seed " << seed << ", " << cases << " cases\n";
  std::mt19937 random(seed);
  const std::vector<std::vector<int>> meshes = {
      {3}, {2, 2}, {2, 3}, {4, 2}, {2, 2, 2}, {3, 2, 2}, {2, 1, 3}, {3, 3, 2}};
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
        << to.ToStringByDim() << "\n"
        << plan->ToString();
    ASSERT_GE(plan->cost.bytes, plan->least_bytes) << plan->ToString();
  }
}

}  // namespace
}  // namespace crosshatch
