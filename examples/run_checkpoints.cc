// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/run_checkpoints.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/checkpoint.h"
#include "crosshatch/checkpoint/index.h"
#include "crosshatch/comm/all_ranks.h"

namespace crosshatch::examples {

std::optional<int64_t> NewestCheckpointIn(const std::string& dir) {
  std::optional<int64_t> newest;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error)) {
    const std::string name = entry.path().filename().string();
    absl::string_view number = name;
    int64_t step = 0;
    if (!absl::ConsumePrefix(&number, "step-") ||
        !absl::SimpleAtoi(number, &step) ||
        !std::filesystem::exists(entry.path() / checkpoint::kIndexFile,
                                 error)) {
      continue;
    }
    newest = std::max(step, newest.value_or(step));
  }
  return newest;
}

absl::StatusOr<std::optional<int64_t>> RunCheckpoints::Newest() {
  CH_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> comm,
                      AllRanks(world_));
  std::optional<int64_t> newest;
  if (world_.rank() == 0) newest = NewestCheckpointIn(options_.checkpoints);
  CH_ASSIGN_OR_RETURN(
      const std::vector<std::string> found,
      comm->Exchange(newest.has_value() ? absl::StrCat(*newest) : "",
                     "newest checkpoint"));
  int64_t step = 0;
  if (!absl::SimpleAtoi(found[0], &step)) return std::nullopt;
  return step;
}

std::string RunCheckpoints::DirectoryOf(int64_t step) const {
  return absl::StrFormat("%s/step-%06d", options_.checkpoints, step);
}

absl::Status RunCheckpoints::Load(int64_t step, nn::Stateful& state) {
  saved_ = step;
  return checkpoint::LoadCheckpoint(world_, state, DirectoryOf(step));
}

absl::Status RunCheckpoints::Save(int64_t step, nn::Stateful& state) {
  if (saved_ == step) return absl::OkStatus();
  saved_ = step;
  return checkpoint::SaveCheckpoint(world_, state, DirectoryOf(step));
}

absl::Status RunCheckpoints::Finish() { return absl::OkStatus(); }

}  // namespace crosshatch::examples
