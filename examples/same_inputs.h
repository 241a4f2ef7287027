// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_SAME_INPUTS_H_
#define CROSSHATCH_EXAMPLES_SAME_INPUTS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/examples/token_source.h"
#include "crosshatch/examples/train_options.h"

namespace crosshatch::examples {

/// Returns a hash of a file's size and bytes. Of a file of more than 16 MiB it
/// takes the first 4 MiB and 3,000 pages of 4 KiB at equal distances: enough to
/// tell weights of different training runs apart, in about a second.
/// \error kNotFound and its like, naming the file.
absl::StatusOr<uint64_t> SampleHashOfFile(const std::string& path);

/// Checks that all ranks read the same tokens, plan, model config and weights.
/// Processes read files each for itself: a pipe is shared out between them, and
/// hosts may have files of one name that differ. Called by all ranks.
/// \param eval may be null.
/// \error kFailedPrecondition naming two ranks and what each reads.
absl::Status CheckSameInputs(World& world, const TrainOptions& options,
                             const TokenSource& tokens,
                             const TokenSource* eval);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_SAME_INPUTS_H_
