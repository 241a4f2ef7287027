// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_TRAIN_H_
#define CROSSHATCH_EXAMPLES_TRAIN_H_

#include "absl/status/status.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/examples/token_source.h"
#include "crosshatch/examples/train_options.h"

namespace crosshatch::examples {

/// Checks what the options, the model's config and the tokens say of each
/// other, before any rank starts: fewer heads than tp ranks, tokens beyond the
/// vocabulary, a save directory that may not be replaced.
/// \error kInvalidArgument or kFailedPrecondition.
absl::Status CheckTraining(const TrainOptions& options,
                           const TokenSource& tokens);

/// Trains as one rank of the job. `options.config` is the model's, also where
/// the weights come from options.model_dir.
/// \error the first thing that went wrong, on every rank.
absl::Status Train(World& world, const TrainOptions& options,
                   const TokenSource& tokens);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_TRAIN_H_
