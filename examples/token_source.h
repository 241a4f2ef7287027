// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_TOKEN_SOURCE_H_
#define CROSSHATCH_EXAMPLES_TOKEN_SOURCE_H_

/// \file
/// The tokens to train on, and the order they are read in.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace crosshatch::examples {

/// Rows [begin, end) of a global batch: `rows` x `seq_len` inputs and targets,
/// row-major, a target being the token after its input.
struct TokenBatch {
  std::vector<int32_t> inputs;
  std::vector<int32_t> targets;
};

/// A sequence of tokens, read round and round.
class TokenSource {
 public:
  /// The bytes of `files`, one after the other.
  /// \error naming the file: what the system says; kInvalidArgument for one
  /// that
  ///     is empty or neither a file nor a pipe; kResourceExhausted for more
  ///     than the machine's memory should hold.
  static absl::StatusOr<TokenSource> FromText(
      const std::vector<std::string>& files);
  /// A file of little-endian uint16, as nanoGPT writes them.
  static absl::StatusOr<TokenSource> FromTokenFile(const std::string& file);

  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  /// The largest token.
  int32_t max_token() const { return max_token_; }

  /// Row i of step s (from 0) holds tokens [(s * global_batch + i) * seq_len,
  /// + seq_len) and the same shifted by one, going round at the end.
  TokenBatch Rows(int64_t step, int64_t global_batch, int64_t seq_len,
                  int64_t begin, int64_t end) const;

 private:
  explicit TokenSource(std::vector<uint16_t> tokens);

  std::vector<uint16_t> tokens_;
  int32_t max_token_ = 0;
};

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_TOKEN_SOURCE_H_
