// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_TOKEN_SOURCE_H_
#define CROSSHATCH_EXAMPLES_TOKEN_SOURCE_H_

/// \file
/// The tokens to train on, and the order they are read in.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace crosshatch::examples {

/// A target that does not count: CrossEntropyOptions::ignore_index.
inline constexpr int32_t kIgnoredTarget = -100;

/// Rows [begin, end) of a global batch: `rows` x `seq_len` inputs and targets,
/// row-major, a target being the token after its input.
struct TokenBatch {
  std::vector<int32_t> inputs;
  std::vector<int32_t> targets;
  /// Where documents are told apart: the lengths of those, or of their parts,
  /// that each row's inputs are of. Else empty.
  std::vector<std::vector<int64_t>> documents;
};

/// A sequence of tokens, read round and round.
class TokenSource {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(30);

  /// The bytes of `files`, one after the other.
  /// \param patience how long a pipe may keep a reader waiting for its next
  /// byte \error naming the file: kDeadlineExceeded beyond `patience`; what the
  /// system says; kInvalidArgument for one
  ///     that is empty or neither a file nor a pipe; kResourceExhausted for
  ///     more than the machine's memory should hold.
  static absl::StatusOr<TokenSource> FromText(
      const std::vector<std::string>& files,
      absl::Duration patience = kPatience);
  /// A file of little-endian integers of `bits`, 16 or 32, as nanoGPT writes
  /// them; 0: by the file's header, or 16. The header is that of llm.c's files:
  /// 256 of int32, the first three of which are 20240520, 1 and the number of
  /// tokens, of 16 bits, or 20240801, 7 and the number of tokens, of 32.
  /// \error also kInvalidArgument for a size that is not that of whole tokens
  ///     or not the header's, for bits that the header contradicts, and for a
  ///     token above 2^31 - 1.
  static absl::StatusOr<TokenSource> FromTokenFile(const std::string& file,
                                                   int bits = 0);

  int64_t size() const {
    return static_cast<int64_t>(narrow_.size() + wide_.size());
  }
  /// The largest token.
  int32_t max_token() const { return max_token_; }

  /// From now on a document ends with each token `eos`: rows tell their
  /// documents, and the target of `eos`, the first token of another document,
  /// is kIgnoredTarget, for nothing before it says what it is.
  void EndDocumentsAt(int32_t eos);
  /// Of `count` tokens from `position` on, gone round, those whose targets
  /// count.
  int64_t CountTargets(int64_t position, int64_t count) const;

  /// A hash of size() and of all tokens.
  uint64_t hash() const { return hash_; }

  /// Rows [begin, end) of a batch that begins at token `position`: row i holds
  /// the `seq_len` tokens from position + i * seq_len on and the same shifted
  /// by one, going round at the end.
  /// \param position from 0 to size() - 1.
  TokenBatch Rows(int64_t position, int64_t seq_len, int64_t begin,
                  int64_t end) const;
  /// Where the batch after `rows` rows begins, gone round.
  int64_t PositionAfter(int64_t position, int64_t seq_len, int64_t rows) const;

 private:
  TokenSource(std::vector<uint16_t> narrow, std::vector<int32_t> wide);

  int32_t token(int64_t at) const {
    const auto i = static_cast<size_t>(at);
    return wide_.empty() ? narrow_[i] : wide_[i];
  }

  // One of them is empty.
  std::vector<uint16_t> narrow_;
  std::vector<int32_t> wide_;
  int32_t max_token_ = 0;
  uint64_t hash_ = 0;
  std::optional<int32_t> eos_;
  int64_t targets_ = 0;  // Of all tokens, those that count.
};

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_TOKEN_SOURCE_H_
