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
#include "crosshatch/nn/bound_values.h"

namespace crosshatch::examples {

/// What a run trains, and on what, as its checkpoints keep it: a run that goes
/// on is compared with it field by field. A field that a checkpoint of an older
/// version lacks keeps the value it has here, and is not compared.
struct RunIdentity {
  std::string model;     ///< The text of its config.json.
  std::string dtype;     ///< Of compute.
  std::string plan;      ///< Of the tp axis, as text; empty without one.
  int64_t eos = kNoEos;  ///< The token that ends a document.
  int64_t tokens = 0;    ///< All that there are, which a position is in.
  int64_t hash = 0;      ///< The bits of TokenSource::hash.
  int64_t rows = 0;      ///< Of a step, over all ranks.
  int64_t row_size = 0;  ///< Tokens of a row.

  static constexpr int64_t kNoEos = -1;
  static constexpr int64_t kUnknown = -2;  ///< For `eos`.

  static RunIdentity Of(const TrainOptions& options, const TokenSource& source);

  /// Returns the fields but `tokens` as variables of a state, each after
  /// `prefix`.
  std::vector<std::pair<std::string, nn::BoundValues::Variable>> Variables(
      const std::string& prefix);

  /// Compares the run of a checkpoint with one that goes on as `now`.
  /// \param may_change names of TrainOptions::may_change
  /// \returns a clause for each change that is allowed
  /// \error kInvalidArgument with a clause for each change that is not, and
  ///     what would allow it
  absl::StatusOr<std::vector<std::string>> ChangesTo(
      const RunIdentity& now, const std::vector<std::string>& may_change) const;
};

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_RUN_IDENTITY_H_
