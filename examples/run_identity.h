// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_RUN_IDENTITY_H_
#define CROSSHATCH_EXAMPLES_RUN_IDENTITY_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
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

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_RUN_IDENTITY_H_
