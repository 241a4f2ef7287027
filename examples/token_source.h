// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_TOKEN_SOURCE_H_
#define CROSSHATCH_EXAMPLES_TOKEN_SOURCE_H_

/// \file
/// TokenSource: the tokens to train on, and the order in which they are read.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace crosshatch::examples {

/// Returns the memory in bytes that a process may use: memory and swap, or less
/// because of a control group or resource limit.
int64_t MachineMemory();

/// A target that is not counted: CrossEntropyOptions::ignore_index.
inline constexpr int32_t kIgnoredTarget = -100;

/// Rows [begin, end) of a global batch: inputs and targets [rows, seq_len],
/// row-major. The target of an input is the next token.
struct TokenBatch {
  std::vector<int32_t> inputs;
  std::vector<int32_t> targets;
  /// With EndDocumentsAt: for each row the lengths of the documents, or parts
  /// of them, in its inputs. Otherwise empty.
  std::vector<std::vector<int64_t>> documents;
};

/// A sequence of tokens that is read cyclically.
class TokenSource {
 public:
  static constexpr absl::Duration kPipeTimeout = absl::Seconds(30);

  /// Reads the bytes of `files`, concatenated, as tokens.
  /// \param timeout how long to wait for the next byte of a pipe.
  /// \error naming the file: kDeadlineExceeded after `timeout`;
  ///     kInvalidArgument if it is empty or neither a file nor a pipe;
  ///     kResourceExhausted if it is larger than the machine's memory should
  ///     hold; errors of the system.
  static absl::StatusOr<TokenSource> FromText(
      const std::vector<std::string>& files,
      absl::Duration timeout = kPipeTimeout);
  /// Reads a file of little-endian integers, as nanoGPT writes them, or with
  /// the header of llm.c. The header is 256 integers of 32 bits. The first
  /// three are 20240520, 1 and the number of tokens for 16-bit tokens, or
  /// 20240801, 7 and the number of tokens for 32-bit tokens.
  /// \param bits 16 or 32; 0: as the header states, or 16 without a header.
  /// \error also kInvalidArgument if the size is not that of whole tokens or
  ///     differs from the header, if `bits` contradicts the header, or for a
  ///     token above 2^31 - 1.
  static absl::StatusOr<TokenSource> FromTokenFile(const std::string& file,
                                                   int bits = 0);

  int64_t size() const {
    return static_cast<int64_t>(narrow_.size() + wide_.size());
  }
  /// Returns the largest token.
  int32_t max_token() const { return max_token_; }

  /// Makes each token `eos` end a document. Batches then have the documents of
  /// each row. The target of `eos`, the first token of the next document,
  /// becomes kIgnoredTarget, because nothing before it determines it.
  void EndDocumentsAt(int32_t eos);
  /// Returns how many of `count` tokens from `position` on, cyclically, have
  /// targets that count.
  int64_t CountTargets(int64_t position, int64_t count) const;

  /// Returns a hash of size() and all tokens.
  uint64_t hash() const { return hash_; }

  /// Returns rows [begin, end) of a batch that begins at token `position`. Row
  /// i has the `seq_len` tokens from position + i * seq_len on, cyclically, and
  /// the same shifted by one as targets.
  /// \param position from 0 to size() - 1.
  TokenBatch Rows(int64_t position, int64_t seq_len, int64_t begin,
                  int64_t end) const;
  /// Returns the position of the batch after `rows` rows, cyclically.
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
  int64_t targets_ = 0;  // Number of tokens whose targets count.
};

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_TOKEN_SOURCE_H_
