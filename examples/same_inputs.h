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

/// Returns a hash of a file's size and content. For a file of more than 16 MiB,
/// uses the first 4 MiB and 3,000 pages of 4 KiB at equal distances. That
/// distinguishes weights of different training runs in about a second.
/// \error kNotFound and other errors of the system, naming the file.
absl::StatusOr<uint64_t> SampleHashOfFile(const std::string& path);

/// Checks that all ranks read the same tokens, plan, model config and weights.
/// Each process reads files by itself: a pipe would be split between them, and
/// hosts may have different files of one name. All ranks must call it.
/// \param eval may be null.
/// \error kFailedPrecondition naming two ranks and what each reads.
absl::Status CheckSameInputs(World& world, const TrainOptions& options,
                             const TokenSource& tokens,
                             const TokenSource* eval);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_SAME_INPUTS_H_
