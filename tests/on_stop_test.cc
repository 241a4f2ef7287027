// SPDX-License-Identifier: Apache-2.0

/// \file
/// A stopped program writes a checkpoint in RunOptions::on_stop, and another
/// run continues from it with the same results.

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/checkpoint.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/launch/run.h"
#include "crosshatch/launch/stop.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/tests/llama_training_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

constexpr int kRanks = 3;
constexpr int kStepsBefore = 3;
constexpr int kStepsAfter = 2;

const nn::LlamaConfig kConfig = {
    .dim = 12, .layers = 1, .heads = 2, .ffn = 7, .vocab = 11};

absl::Status SetUp(World& world, LlamaTraining& run) {
  CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                      InitDeviceMesh(world, {{"fsdp", kRanks}}));
  CH_RETURN_IF_ERROR(fsdp::FullyShard(run.model, mesh, {}));
  CH_RETURN_IF_ERROR(run.model.Materialize({.seed = 5}));
  run.Begin();
  return absl::OkStatus();
}

/// One per rank, which is a thread or a process. on_stop reads it after the
/// rank's function has returned.
thread_local std::optional<LlamaTraining> training;

/// Trains until a signal to rank 1 stops the job.
absl::Status TrainUntilStopped(World& world) {
  training.emplace(kConfig);
  CH_RETURN_IF_ERROR(SetUp(world, *training));
  for (int step = 1;; ++step) {
    CH_RETURN_IF_ERROR(training->Step());
    if (world.rank() == 1 && step == kStepsBefore) std::raise(SIGTERM);
    CH_ASSIGN_OR_RETURN(const bool stops, StopRequested(world));
    if (stops) return absl::OkStatus();
  }
}

/// Continues from `from`, or begins, for `steps` steps.
/// \returns hashes of what it saves to `to`.
std::map<std::string, uint64_t> Train(const std::string& from, int steps,
                                      const std::string& to) {
  const auto run_rank = [&](World& world) -> absl::Status {
    LlamaTraining run(kConfig);
    CH_RETURN_IF_ERROR(SetUp(world, run));
    if (!from.empty()) {
      CH_RETURN_IF_ERROR(checkpoint::LoadCheckpoint(world, *run.state, from));
    }
    for (int i = 0; i < steps; ++i) CH_RETURN_IF_ERROR(run.Step());
    return checkpoint::SaveCheckpoint(world, *run.state, to);
  };
  EXPECT_EQ(Run(run_rank, {.engine = EngineKind::kLocal, .ranks = kRanks}), 0);
  const auto hashes = HashesOf(to);
  EXPECT_TRUE(hashes.ok()) << hashes.status();
  return hashes.value_or(std::map<std::string, uint64_t>());
}

/// Returns the rank of this process under mpirun, where a process can run only
/// one job.
std::optional<int> ProcessRank() {
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (rank == nullptr) return std::nullopt;
  return std::atoi(rank);
}

TEST(OnStopTest, WritesACheckpointToResumeFrom) {
  const std::optional<int> process = ProcessRank();
  const std::string root = absl::StrCat(testing::TempDir(), "/on_stop");
  for (const int status :
       process.has_value() ? std::vector<int>{143} : std::vector<int>{0, 143}) {
    const std::string dir = absl::StrCat(root, "/", status);
    RunOptions options = {.ranks = kRanks, .stop_status = status};
    options.on_stop = [&](World& world) -> absl::Status {
      const absl::Status saved =
          checkpoint::SaveCheckpoint(world, *training->state, dir);
      training.reset();
      return saved;
    };
    EXPECT_EQ(crosshatch::Run(TrainUntilStopped, options), status);
    if (process.value_or(0) != 0) return;
    EXPECT_EQ(Train(dir, kStepsAfter, dir + "-resumed"),
              Train("", kStepsBefore + kStepsAfter, dir + "-whole"));
  }
}

}  // namespace
}  // namespace crosshatch
