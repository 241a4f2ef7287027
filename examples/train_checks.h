// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_TRAIN_CHECKS_H_
#define CROSSHATCH_EXAMPLES_TRAIN_CHECKS_H_

/// \file
/// Checks of a training run before any rank starts: the only place that checks
/// sizes, their products and the paths of a run, whether they come from flags
/// or from a model's config.json.

#include "absl/status/status.h"
#include "crosshatch/examples/token_source.h"
#include "crosshatch/examples/train_options.h"

namespace crosshatch::examples {

/// The maximal number of ranks that run as threads of one process. A dry run's
/// mesh may have any size.
inline constexpr int kMaxLocalRanks = 4096;

/// Checks the sizes of the model and the batch and their products, the mesh,
/// and the paths, against each other and the disk.
/// \error names the flag or field and a correct value.
absl::Status CheckOptions(const TrainOptions& options);

/// Checks also that the tokens are in the vocabulary and that the run fits the
/// machine's memory, by a dry run of one step of the first and the last rank.
/// \pre CheckOptions(options) is OK.
absl::Status CheckTraining(const TrainOptions& options,
                           const TokenSource& tokens);

/// Checks that the evaluation text is in the vocabulary and has at least one
/// row.
absl::Status CheckEvaluation(const TrainOptions& options,
                             const TokenSource& eval);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_TRAIN_CHECKS_H_
