// SPDX-License-Identifier: Apache-2.0

/// \file
/// Runs random redistributions between rank threads, on one mesh and between
/// meshes, and compares them with a dense tensor. CROSSHATCH_FUZZ_SEED sets the
/// seed. CROSSHATCH_FUZZ_LOCAL_CASES sets the number of cases on one mesh; an
/// eighth as many are between meshes.

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/cross_mesh.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/dtensor/redistribution/interpreter.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch {
namespace {

struct Case {
  Layout from;
  Layout to;
  Shape shape;
  DenseTensor dense;
  std::vector<Values> shards;
  /// By position on the destination's mesh.
  std::vector<Values> results;

  std::string ToString() const {
    return "shape " + crosshatch::ToString(shape) + ", " +
           from.ToStringByDim() + " on " + from.mesh().ToString() + " to " +
           to.ToStringByDim() + " on " + to.mesh().ToString();
  }
};

Case RandomCase(const MeshLayout& from_mesh, const MeshLayout& to_mesh,
                std::mt19937& random) {
  const int ndim = static_cast<int>(random() % 4);
  const Shape shape = RandomShape(ndim, ndim == 3 ? 5 : 10, random);
  const Layout from = RandomLayout(from_mesh, ndim, random);
  const Layout to = RandomLayout(to_mesh, ndim, random);
  Case made = {from, to, shape, DenseTensor(from, shape, random), {}, {}};
  made.shards = made.dense.Shards();
  made.results.resize(to_mesh.size());
  return made;
}

int PositionOf(const MeshLayout& mesh, int rank) {
  return static_cast<int>(
      std::find(mesh.ranks().begin(), mesh.ranks().end(), rank) -
      mesh.ranks().begin());
}

Tensor PartOf(const Case& of, const DeviceMesh& mesh, int rank) {
  return MakeDTensor(
      FromValues<double>(of.from.LocalShape(of.shape, *mesh.coordinate()),
                         of.shards[PositionOf(mesh.layout(), rank)]),
      mesh, of.from, of.shape);
}

void Keep(const Tensor& result, const DeviceMesh& mesh, int rank, Case& of) {
  of.results[PositionOf(mesh.layout(), rank)] =
      LocalTensor(result).ToVector<double>();
}

void ExpectRight(const absl::Status& status, const std::vector<Case>& cases,
                 unsigned seed) {
  ASSERT_TRUE(status.ok()) << status << " with seed " << seed;
  for (const Case& of : cases) {
    ASSERT_EQ(of.dense.Mismatch(of.to, of.results), "")
        << of.ToString() << " with seed " << seed;
  }
}

TEST(RedistributeLocalFuzzTest, RanksGetWhatTheDenseTensorHolds) {
  const unsigned seed = FuzzSeed();
  const unsigned cases = FuzzCases("CROSSHATCH_FUZZ_LOCAL_CASES", 160);
  std::cout << "seed " << seed << ", " << cases << " cases\n";
  const auto& meshes = FuzzMeshes();
  for (size_t m = 0; m < meshes.size(); ++m) {
    std::mt19937 random(seed + static_cast<unsigned>(m));
    const MeshLayout layout = OracleMesh(meshes[m]);
    std::vector<Case> batch;
    const size_t count = (cases + m) / meshes.size();
    for (size_t i = 0; i < count; ++i) {
      batch.push_back(RandomCase(layout, layout, random));
    }
    const absl::Status status = StatusOfRanks(
        layout.size(),
        [&](World& world) -> absl::Status {
          CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                              InitDeviceMesh(world, layout));
          for (size_t i = 0; i < batch.size(); ++i) {
            // Half of them on a separate stream.
            Keep(Redistribute(PartOf(batch[i], mesh, world.rank()), batch[i].to,
                              {.async = i % 2 == 1}),
                 mesh, world.rank(), batch[i]);
          }
          return world.context().Synchronize();
        },
        {.threads_per_rank = 1});
    ASSERT_NO_FATAL_FAILURE(ExpectRight(status, batch, seed));
  }
}

TEST(RedistributeLocalFuzzTest, AcrossMeshesTheyGetItToo) {
  const unsigned seed = FuzzSeed();
  const unsigned cases = FuzzCases("CROSSHATCH_FUZZ_LOCAL_CASES", 160) / 8;
  std::cout << "seed " << seed << ", " << cases << " cases\n";
  constexpr int kWorld = 7;
  const std::vector<std::vector<int>> shapes = {{1},    {2},    {3},
                                                {2, 2}, {3, 2}, {2, 1, 2}};
  std::mt19937 random(seed);
  std::vector<Case> batch;
  for (unsigned i = 0; i < cases; ++i) {
    const MeshLayout from = RandomMesh(shapes, kWorld, random);
    batch.push_back(
        RandomCase(from, RandomMesh(shapes, kWorld, random), random));
  }
  const absl::Status status = StatusOfRanks(
      kWorld,
      [&](World& world) -> absl::Status {
        for (Case& of : batch) {
          CH_ASSIGN_OR_RETURN(const DeviceMesh from,
                              InitDeviceMesh(world, of.from.mesh()));
          CH_ASSIGN_OR_RETURN(const DeviceMesh to,
                              InitDeviceMesh(world, of.to.mesh()));
          const CrossMeshTensor y = RedistributeAcross(
              from.coordinate().has_value()
                  ? CrossMeshTensor(PartOf(of, from, world.rank()))
                  : CrossMeshTensor::Absent(),
              {.from_mesh = from,
               .from = of.from,
               .to_mesh = to,
               .to = of.to,
               .sizes = of.shape,
               .dtype = kFloat64});
          if (y.present()) Keep(y.tensor(), to, world.rank(), of);
        }
        return world.context().Synchronize();
      },
      {.threads_per_rank = 1});
  ExpectRight(status, batch, seed);
}

}  // namespace
}  // namespace crosshatch
