// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_BATCH_SOURCE_H_
#define CROSSHATCH_EXAMPLES_BATCH_SOURCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "crosshatch/examples/token_source.h"

namespace crosshatch::examples {

/// What the steps of a run read, as its checkpoints keep it: a run that goes on
/// with something else says so.
struct BatchSource {
  int64_t tokens = 0;    ///< All that there are, which a position is in.
  int64_t hash = 0;      ///< The bits of TokenSource::SampleHash.
  int64_t rows = 0;      ///< Of a step, over all ranks.
  int64_t row_size = 0;  ///< Tokens of a row.

  /// Steps of `rows` rows of `row_size` tokens of `source`.
  static BatchSource Of(const TokenSource& source, int64_t rows,
                        int64_t row_size);

  /// What is said of a run whose steps have read this, and which goes on with
  /// `now` at the token `position` of it: a sentence for each change.
  std::vector<std::string> ChangesTo(const BatchSource& now,
                                     int64_t position) const;
};

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_BATCH_SOURCE_H_
