// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_RUN_IDENTITY_H_
#define CROSSHATCH_EXAMPLES_RUN_IDENTITY_H_

/// \file
/// RunIdentity: the model and data of a run, which a resumed run is compared
/// with. CheckSameInputs compares the inputs of the ranks of one run.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/examples/token_source.h"
#include "crosshatch/examples/train_options.h"
#include "crosshatch/nn/state_dict.h"

namespace crosshatch::examples {

/// The model and data of a run, as its checkpoints record them. A resumed run
/// is compared with it field by field. A field that an older checkpoint lacks
/// has its default here and is not compared.
struct RunIdentity {
  std::string model;     ///< The text of its config.json.
  std::string dtype;     ///< Of compute.
  std::string plan;      ///< Of the tp axis, as text; empty if none.
  int64_t eos = kNoEos;  ///< The token that ends a document.
  int64_t tokens = 0;    ///< Number of tokens in the source.
  int64_t hash = 0;      ///< The bits of TokenSource::hash.
  int64_t rows = 0;      ///< Per step, over all ranks.
  int64_t row_size = 0;  ///< Tokens per row.

  static constexpr int64_t kNoEos = -1;
  static constexpr int64_t kUnknown = -2;  ///< For `eos`.

  static RunIdentity Of(const TrainOptions& options, const TokenSource& source);

  /// Returns the fields other than `tokens` as variables of a state, with names
  /// that begin with `prefix`.
  std::vector<std::pair<std::string, nn::BoundValues::Variable>> Variables(
      const std::string& prefix);

  /// Compares the run of a checkpoint with `now`, which resumes it.
  /// \param may_change names of TrainOptions::may_change.
  /// \returns a clause for each allowed change.
  /// \error kInvalidArgument with a clause for each change that is not allowed,
  ///     and how to allow it.
  absl::StatusOr<std::vector<std::string>> ChangesTo(
      const RunIdentity& now, const std::vector<std::string>& may_change) const;
};

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

#endif  // CROSSHATCH_EXAMPLES_RUN_IDENTITY_H_
