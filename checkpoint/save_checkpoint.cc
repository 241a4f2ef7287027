// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/checkpoint.h"
#include "crosshatch/checkpoint/described_state.h"
#include "crosshatch/checkpoint/index.h"
#include "crosshatch/checkpoint/new_directory.h"
#include "crosshatch/checkpoint/on_ranks.h"
#include "crosshatch/checkpoint/save_job.h"
#include "crosshatch/checkpoint/save_plan.h"
#include "crosshatch/tensor/host_access.h"

namespace crosshatch::checkpoint {
namespace {

int FilesOf(const SavePlan& plan, int rank) {
  return plan.by_rank[static_cast<size_t>(rank)].empty() ? 0 : 1;
}

absl::Status PlanDry(World& world, const absl::StatusOr<nn::StateDict>& state,
                     const SaveCheckpointOptions& options) {
  CH_RETURN_IF_ERROR(state.status());
  CH_ASSIGN_OR_RETURN(const SavePlan plan, PlanOf(world, *state));
  CH_RETURN_IF_ERROR(FormatIndex(plan.index).status());
  if (options.stats != nullptr) {
    *options.stats = {.bytes_written = plan.BytesOf(world.rank()),
                      .files = FilesOf(plan, world.rank())};
  }
  return absl::OkStatus();
}

absl::Status Save(World& world, const absl::StatusOr<nn::StateDict>& state,
                  const std::string& dir,
                  const SaveCheckpointOptions& options) {
  if (world.context().dry_run()) return PlanDry(world, state, options);
  CH_ASSIGN_OR_RETURN(
      const std::unique_ptr<SaveJob> job,
      SaveJob::Prepare(world, state, dir, options.overwrite,
                       *options.file_system, options.use_fallback_directory,
                       options.union_of_ranks));
  CH_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> comm,
                      AllRanks(world));
  absl::StatusOr<std::vector<std::string>> hashes =
      OnEveryRank(*comm, "save: begin", [&]() -> absl::StatusOr<std::string> {
        CH_RETURN_IF_ERROR(job->BeginFile());
        return std::string();
      });
  // Each round copies elements that the host cannot address.
  for (int round = 0; hashes.ok() && round < job->rounds(); ++round) {
    const absl::Span<const SaveJob::Piece> pieces = job->Round(round);
    std::vector<HostView> views;
    views.reserve(pieces.size());
    std::vector<const void*> data;
    for (const SaveJob::Piece& piece : pieces) {
      views.emplace_back(piece.data);
      data.push_back(views.back().data());
    }
    hashes =
        OnEveryRank(*comm, "save: write", [&]() -> absl::StatusOr<std::string> {
          CH_RETURN_IF_ERROR(job->Write(pieces, data));
          return std::string();
        });
  }
  if (hashes.ok()) {
    hashes = OnEveryRank(*comm, "save: end", [&] { return job->EndFile(); });
  }
  // Removes incomplete files before the ranks learn of the error, because a
  // program may save again at once.
  if (!hashes.ok() && comm->rank() != 0) job->GiveUp();
  const absl::Status committed = OnFirstRank(*comm, "save: commit", [&] {
    if (hashes.ok()) return job->Commit(*hashes);
    job->GiveUp();
    return absl::OkStatus();
  });
  if (!hashes.ok()) return hashes.status();
  CH_RETURN_IF_ERROR(committed);
  if (options.stats != nullptr) {
    *options.stats = {.bytes_written = job->bytes_written(),
                      .files = FilesOf(job->plan(), world.rank())};
  }
  return absl::OkStatus();
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
  CH_ASSIGN_OR_RETURN(SavePlan plan,
                      PlanSave(described.tensors, world.AllRanks()));
  plan.index.values = described.values;
  return plan;
}

absl::Status CheckCheckpointDirectory(const std::string& dir,
                                      const SaveCheckpointOptions& options) {
  return CheckMayWrite(dir, options.overwrite, *options.file_system,
                       IsCheckpointFile);
}

}  // namespace crosshatch::checkpoint
