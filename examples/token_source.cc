// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/token_source.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"

namespace crosshatch::examples {
namespace {

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::NotFoundError(
        absl::StrCat("cannot open ", path, ": ", std::strerror(errno)));
  }
  std::string content((std::istreambuf_iterator<char>(file)),
                      std::istreambuf_iterator<char>());
  if (file.bad()) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
  }
  if (content.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is empty or not a file"));
  }
  return content;
}

}  // namespace

TokenSource::TokenSource(std::vector<uint16_t> tokens)
    : tokens_(std::move(tokens)),
      max_token_(*std::max_element(tokens_.begin(), tokens_.end())) {}

absl::StatusOr<TokenSource> TokenSource::FromText(
    const std::vector<std::string>& files) {
  std::vector<uint16_t> tokens;
  for (const std::string& path : files) {
    CH_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  }
  if (tokens.empty()) {
    return absl::InvalidArgumentError("no text file was named");
  }
  return TokenSource(std::move(tokens));
}

absl::StatusOr<TokenSource> TokenSource::FromTokenFile(
    const std::string& path) {
  CH_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
  if (bytes.size() % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", bytes.size(),
                     " bytes; tokens are uint16, so an even number is due"));
  }
  std::vector<uint16_t> tokens(bytes.size() / 2);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto low = static_cast<unsigned char>(bytes[2 * i]);
    const auto high = static_cast<unsigned char>(bytes[2 * i + 1]);
    tokens[i] = static_cast<uint16_t>(low | high << 8);
  }
  return TokenSource(std::move(tokens));
}

TokenBatch TokenSource::Rows(int64_t step, int64_t global_batch,
                             int64_t seq_len, int64_t begin,
                             int64_t end) const {
  TokenBatch batch;
  const auto count = static_cast<size_t>((end - begin) * seq_len);
  batch.inputs.reserve(count);
  batch.targets.reserve(count);
  for (int64_t row = begin; row < end; ++row) {
    int64_t at = (step * global_batch + row) * seq_len % size();
    for (int64_t i = 0; i < seq_len; ++i) {
      batch.inputs.push_back(tokens_[static_cast<size_t>(at)]);
      at = (at + 1) % size();
      batch.targets.push_back(tokens_[static_cast<size_t>(at)]);
    }
  }
  return batch;
}

}  // namespace crosshatch::examples
