// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_TRAIN_H_
#define CROSSHATCH_EXAMPLES_TRAIN_H_

/// \file
/// Train: the training loop of train_lm.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/examples/token_source.h"
#include "crosshatch/examples/train_options.h"

namespace crosshatch::examples {

/// Trains as one rank of the job.
///
/// If options.metrics or options.checkpoints cannot be written, training and
/// saving continue. The error is warned of at once and returned at the end.
/// \param options `config` is the model's, also if the weights come from
///     options.model_dir. If `eos` is set, `tokens` and `eval` must separate
///     documents (EndDocumentsAt).
/// \param eval tokens to evaluate the model on; null: no evaluation.
/// \error The first error, on every rank.
absl::Status Train(World& world, const TrainOptions& options,
                   const TokenSource& tokens,
                   const TokenSource* eval = nullptr);

/// Runs `steps` steps as a rank of a dry run, printing and writing nothing.
absl::Status TrainDry(World& world, const TrainOptions& options,
                      const TokenSource& tokens, int64_t steps);

/// Returns the peak memory of `rank` in the first step, by a dry run that
/// prints and writes nothing.
/// \error any error of the rank that a dry run detects.
absl::StatusOr<int64_t> DryPeak(const TrainOptions& options,
                                const TokenSource& tokens, int rank);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_TRAIN_H_
