// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_TRAIN_H_
#define CROSSHATCH_EXAMPLES_TRAIN_H_

/// \file
/// The training loop of train_lm.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/examples/token_source.h"
#include "crosshatch/examples/train_options.h"

namespace crosshatch::examples {

/// Trains as one rank of the job. `options.config` is the model's, also where
/// the weights come from options.model_dir. Documents are told apart where
/// options.eos is set; `tokens` and `eval` then tell them (EndDocumentsAt).
/// What could not be written to options.metrics or options.checkpoints ends
/// neither the training nor the saving; it is warned of at once and the error
/// at the end. \param eval what to evaluate the model on; null: nothing. \error
/// the first thing that went wrong, on every rank.
absl::Status Train(World& world, const TrainOptions& options,
                   const TokenSource& tokens,
                   const TokenSource* eval = nullptr);

/// The most memory that `rank` holds at one time in the first step, by a dry
/// run that prints and writes nothing.
/// \error what a rank would meet that can be met dry
absl::StatusOr<int64_t> DryPeak(const TrainOptions& options,
                                const TokenSource& tokens, int rank);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_TRAIN_H_
