// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_RUN_CHECKPOINTS_H_
#define CROSSHATCH_EXAMPLES_RUN_CHECKPOINTS_H_

/// \file
/// The checkpoints of a run of train_lm, as its options ask for them.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/examples/train_options.h"
#include "crosshatch/nn/state_dict.h"

namespace crosshatch::examples {

/// The step of the newest complete checkpoint of a run in `dir`; none where
/// there is none, or no directory.
std::optional<int64_t> NewestCheckpointIn(const std::string& dir);

/// All ranks call the same, in the same order; errors are those of all.
class RunCheckpoints {
 public:
  /// Both outlive it.
  RunCheckpoints(World& world, const TrainOptions& options)
      : world_(world), options_(options) {}

  /// The step of the newest one; none where there is none.
  absl::StatusOr<std::optional<int64_t>> Newest();
  /// "runs/a/step-000100".
  std::string DirectoryOf(int64_t step) const;

  absl::Status Load(int64_t step, nn::Stateful& state);
  /// Nothing if that of `step` was the last that was saved.
  absl::Status Save(int64_t step, nn::Stateful& state);
  /// Waits for what is being written.
  absl::Status Finish();

 private:
  World& world_;
  const TrainOptions& options_;
  std::optional<int64_t> saved_;
};

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_RUN_CHECKPOINTS_H_
