// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/token_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/examples/machine_memory.h"

namespace crosshatch::examples {
namespace {

__extension__ using Wide = __int128;

// Appends the bytes of a file or a pipe to `content`.
absl::Status AppendFile(const std::string& path, std::string& content) {
  // A token takes twice a byte of text, and both are there for a while.
  const size_t most = static_cast<size_t>(MachineMemory()) / 8;
  const auto too_long = [&] {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot read ", path,
                     ": all that is trained on is held "
                     "in memory, here at most ",
                     most, " bytes of text or tokens"));
  };
  const auto failed = [&](const char* action) {
    const int error = errno;
    return absl::ErrnoToStatus(error,
                               absl::StrCat("cannot ", action, " ", path));
  };
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return failed("open");
  const absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0) return failed("examine");
  // A device may go on for ever.
  if (!S_ISREG(info.st_mode) && !S_ISFIFO(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot read ", path, ": it is neither a file nor a pipe"));
  }
  const size_t before = content.size();
  if (before + static_cast<size_t>(info.st_size) > most) return too_long();
  while (true) {
    constexpr size_t kAtOnce = size_t{1} << 20;
    const size_t size = content.size();
    if (size > most) return too_long();
    content.resize(size + kAtOnce);
    const ssize_t got = read(fd, content.data() + size, kAtOnce);
    const int error = errno;
    content.resize(size + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    errno = error;
    if (got == 0) break;
    if (got < 0 && errno != EINTR) return failed("read");
  }
  if (content.size() == before) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is empty"));
  }
  return absl::OkStatus();
}

}  // namespace

TokenSource::TokenSource(std::vector<uint16_t> tokens)
    : tokens_(std::move(tokens)),
      max_token_(*std::max_element(tokens_.begin(), tokens_.end())) {}

absl::StatusOr<TokenSource> TokenSource::FromText(
    const std::vector<std::string>& files) {
  std::string text;
  std::vector<uint16_t> tokens;
  for (const std::string& path : files) {
    CH_RETURN_IF_ERROR(AppendFile(path, text));
  }
  tokens.reserve(text.size());
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  if (tokens.empty()) {
    return absl::InvalidArgumentError("no text file was named");
  }
  return TokenSource(std::move(tokens));
}

absl::StatusOr<TokenSource> TokenSource::FromTokenFile(
    const std::string& path) {
  std::string bytes;
  CH_RETURN_IF_ERROR(AppendFile(path, bytes));
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
    // Any number of steps: the product is taken in the ring of tokens.
    const Wide row_of_all = Wide{step} * global_batch + row;
    auto at = static_cast<int64_t>(row_of_all % size() * seq_len % size());
    for (int64_t i = 0; i < seq_len; ++i) {
      batch.inputs.push_back(tokens_[static_cast<size_t>(at)]);
      at = (at + 1) % size();
      batch.targets.push_back(tokens_[static_cast<size_t>(at)]);
    }
  }
  return batch;
}

}  // namespace crosshatch::examples
