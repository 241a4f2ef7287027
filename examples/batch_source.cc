// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/batch_source.h"

#include "absl/strings/str_cat.h"

namespace crosshatch::examples {
namespace {

std::string Rows(const BatchSource& source) {
  return absl::StrCat(source.rows, " rows of ", source.row_size, " tokens");
}

}  // namespace

BatchSource BatchSource::Of(const TokenSource& source, int64_t rows,
                            int64_t row_size) {
  return {.tokens = source.size(),
          .hash = static_cast<int64_t>(source.SampleHash()),
          .rows = rows,
          .row_size = row_size};
}

std::vector<std::string> BatchSource::ChangesTo(const BatchSource& now,
                                                int64_t position) const {
  constexpr char kWritten[] = "the checkpoint was written in training on ";
  std::vector<std::string> changes;
  if (tokens != now.tokens) {
    changes.push_back(absl::StrCat(kWritten, tokens,
                                   " tokens, and now there are ", now.tokens,
                                   ": goes on at token ", position));
  } else if (hash != now.hash) {
    // As many from another text, or from another tokenizer.
    changes.push_back(absl::StrCat(kWritten, "other tokens, as many as these: ",
                                   "goes on at token ", position));
  }
  if (rows != now.rows || row_size != now.row_size) {
    changes.push_back(absl::StrCat(kWritten, Rows(*this),
                                   " a step: goes on with ", Rows(now),
                                   ", as --global_batch and --seq_len say"));
  }
  return changes;
}

}  // namespace crosshatch::examples
