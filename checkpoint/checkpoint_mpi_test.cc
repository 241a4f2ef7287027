// SPDX-License-Identifier: Apache-2.0

/// \file
/// Checkpoints of ranks in several processes.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/async_save.h"
#include "crosshatch/checkpoint/checkpoint.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/creation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::checkpoint {
namespace {

/// Returns a matrix sharded on `dim`, and a step.
absl::StatusOr<nn::StateDict> StateOf(const DeviceMesh& mesh, int dim,
                                      float first) {
  std::vector<float> values(7 * 5);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = first + static_cast<float>(i);
  }
  CH_ASSIGN_OR_RETURN(const Layout layout,
                      Layout::FromPlacements(mesh.layout(), 2, {Shard(dim)}));
  nn::StateDict state;
  CH_RETURN_IF_ERROR(state.Add(
      "w", DistributeTensor(FromValues<float>({7, 5}, values), mesh, layout)));
  CH_RETURN_IF_ERROR(state.Add("step", static_cast<int64_t>(first)));
  return state;
}

TEST(CheckpointMpiTest, ProcessesSaveSynchronouslyAndAsynchronouslyAndLoad) {
  // All processes have the same temporary directory.
  const std::string root = ::testing::TempDir() + "checkpoint_mpi";
  const absl::Status status = RunMpi([&](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                        InitDeviceMesh(world, {{"fsdp", world.size()}}));
    CH_ASSIGN_OR_RETURN(const nn::StateDict first, StateOf(mesh, 0, 100));
    CH_ASSIGN_OR_RETURN(const nn::StateDict second, StateOf(mesh, 1, 200));
    CH_RETURN_IF_ERROR(SaveCheckpoint(world, first, root, {.overwrite = true}));
    AsyncCheckpointer saver(world);
    CH_RETURN_IF_ERROR(saver.Save(second, root + "-async", true));
    CH_RETURN_IF_ERROR(saver.Wait());
    for (const auto& [dir, expected] :
         {std::pair(root, 100.0f), std::pair(root + "-async", 200.0f)}) {
      // Each loads with the other one's sharding.
      CH_ASSIGN_OR_RETURN(nn::StateDict state,
                          StateOf(mesh, expected == 100 ? 1 : 0, 0));
      LoadStats stats;
      CH_RETURN_IF_ERROR(LoadCheckpoint(world, state, dir, {.stats = &stats}));
      CH_ASSIGN_OR_RETURN(const Tensor w, state.Get<Tensor>("w"));
      EXPECT_EQ(stats.bytes_read, LocalTensor(w).numel() * 4);
      const std::vector<float> values = FullTensor(w).ToVector<float>();
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_EQ(values[i], expected + static_cast<float>(i)) << dir;
      }
      EXPECT_EQ(*state.Get<int64_t>("step"), static_cast<int64_t>(expected));
    }
    const absl::Status refused = SaveCheckpoint(world, first, root);
    EXPECT_TRUE(absl::IsAlreadyExists(refused)) << refused;
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace crosshatch::checkpoint
