// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_TRAIN_CHECKS_H_
#define CROSSHATCH_EXAMPLES_TRAIN_CHECKS_H_

/// \file
/// What is found wrong with a training run before any rank starts: the one
/// place where sizes, their products and the paths of a run are checked,
/// whether they come from flags or from a model's config.json.

#include "absl/status/status.h"
#include "crosshatch/examples/token_source.h"
#include "crosshatch/examples/train_options.h"

namespace crosshatch::examples {

/// The most ranks that run as threads of one process. A dry run takes a mesh of
/// any size.
inline constexpr int kMostLocalRanks = 4096;

/// Checks the sizes of the model and the batch, each and multiplied, the mesh,
/// and what the paths say of each other and of the disk.
/// \error names the flag or the field and what would be right
absl::Status CheckOptions(const TrainOptions& options);

/// As above, and that the tokens are in the vocabulary, and that the run fits
/// this machine's memory: one step of the first and the last rank is run dry.
/// \pre CheckOptions(options) is OK
absl::Status CheckTraining(const TrainOptions& options,
                           const TokenSource& tokens);

/// That the text to evaluate on is in the vocabulary, and has a whole row.
absl::Status CheckEvaluation(const TrainOptions& options,
                             const TokenSource& eval);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_TRAIN_CHECKS_H_
