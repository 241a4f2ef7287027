// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/checkpoint.h"
#include "crosshatch/checkpoint/described_state.h"
#include "crosshatch/checkpoint/index.h"
#include "crosshatch/checkpoint/new_directory.h"
#include "crosshatch/checkpoint/on_ranks.h"
#include "crosshatch/checkpoint/save_job.h"
#include "crosshatch/tensor/host_access.h"

namespace crosshatch::checkpoint {
namespace {

absl::Status Save(World& world, const absl::StatusOr<nn::StateDict>& state,
                  const std::string& dir,
                  const SaveCheckpointOptions& options) {
  CH_ASSIGN_OR_RETURN(const std::unique_ptr<SaveJob> job,
                      SaveJob::Prepare(world, state, dir, options.overwrite,
                                       *options.file_system));
  CH_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> comm,
                      AllRanks(world));
  std::vector<HostView> views;
  views.reserve(job->cells().size());
  std::vector<const void*> data;
  for (const Tensor& cell : job->cells()) {
    views.emplace_back(cell);
    data.push_back(views.back().data());
  }
  const absl::StatusOr<std::vector<std::string>> hashes =
      OnEveryRank(*comm, "save: write", [&] { return job->WriteFile(data); });
  // What was given up is removed before the ranks learn of it: a program may
  // save again at once.
  const absl::Status committed = OnFirstRank(*comm, "save: commit", [&] {
    if (hashes.ok()) return job->Commit(*hashes);
    job->GiveUp();
    return absl::OkStatus();
  });
  return hashes.ok() ? committed : hashes.status();
}

}  // namespace

absl::Status SaveCheckpoint(World& world, const nn::StateDict& state,
                            const std::string& dir,
                            const SaveCheckpointOptions& options) {
  return Save(world, state, dir, options);
}

absl::Status SaveCheckpoint(World& world, nn::Stateful& stateful,
                            const std::string& dir,
                            const SaveCheckpointOptions& options) {
  return Save(world, stateful.State(), dir, options);
}

absl::StatusOr<SavePlan> PlanOf(const World& world,
                                const nn::StateDict& state) {
  CH_ASSIGN_OR_RETURN(const DescribedState described, Describe(state));
  CH_ASSIGN_OR_RETURN(SavePlan plan, PlanSave(described.tensors, world.size()));
  plan.index.values = described.values;
  return plan;
}

absl::Status CheckCheckpointDirectory(const std::string& dir,
                                      const SaveCheckpointOptions& options) {
  return CheckMayWrite(dir, options.overwrite, *options.file_system,
                       IsCheckpointFile);
}

}  // namespace crosshatch::checkpoint
