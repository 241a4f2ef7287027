// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/token_source.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/content_hash.h"

namespace crosshatch::examples {
namespace {

__extension__ using Wide = __int128;

// Returns the number in a system file; the maximum if there is none.
int64_t LimitIn(const char* path) {
  std::ifstream file(path);
  int64_t limit = 0;
  return file >> limit ? limit : std::numeric_limits<int64_t>::max();
}

// Waits up to `timeout` until `fd` has bytes or is at its end.
absl::Status AwaitBytes(int fd, const std::string& path,
                        absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  while (true) {
    struct pollfd wanted = {.fd = fd, .events = POLLIN, .revents = 0};
    const absl::Duration left =
        std::max(absl::ZeroDuration(), until - absl::Now());
    const int ready =
        poll(&wanted, 1, static_cast<int>(absl::ToInt64Milliseconds(left)));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot wait for ", path));
    }
    if (ready == 0) {
      return absl::DeadlineExceededError(absl::StrCat(
          "cannot read ", path,
          ": neither a byte nor its end was received for ",
          absl::FormatDuration(timeout), "; does a program write to it?"));
    }
  }
}

// Appends the content of a file or pipe to `content`.
absl::Status AppendFile(const std::string& path, absl::Duration timeout,
                        std::string& content) {
  // A token takes twice the size of a text byte, and both exist for a while.
  const size_t most = static_cast<size_t>(MachineMemory()) / 8;
  const auto too_long = [&] {
    return absl::ResourceExhaustedError(absl::StrCat(
        "cannot read ", path,
        ": training data are held in memory, on this machine at most ", most,
        " bytes of text or tokens"));
  };
  const auto failed = [&](const char* action) {
    const int error = errno;
    return absl::ErrnoToStatus(error,
                               absl::StrCat("cannot ", action, " ", path));
  };
  // A read of a pipe without a writer, or of a system log, would never return.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return failed("open");
  const absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0) return failed("examine");
  // A device may be endless.
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
    CH_RETURN_IF_ERROR(AwaitBytes(fd, path, timeout));
    content.resize(size + kAtOnce);
    const ssize_t got = read(fd, content.data() + size, kAtOnce);
    const int error = errno;
    content.resize(size + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    errno = error;
    if (got == 0) break;
    if (got < 0 && errno != EINTR && errno != EAGAIN) return failed("read");
  }
  if (content.size() == before) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is empty"));
  }
  return absl::OkStatus();
}

uint32_t LittleEndian(const std::string& bytes, size_t at, size_t count) {
  uint32_t value = 0;
  for (size_t i = 0; i < count; ++i) {
    value |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[at + i]))
             << (8 * i);
  }
  return value;
}

/// Offset and width of the tokens in a file.
struct TokenFormat {
  size_t begin = 0;
  int bits = 16;
};

absl::StatusOr<TokenFormat> FormatOf(const std::string& path,
                                     const std::string& bytes, int bits) {
  constexpr size_t kHeaderBytes = 256 * 4;
  constexpr struct {
    uint32_t magic;
    uint32_t version;
    int bits;
  } kHeaders[] = {{20240520, 1, 16}, {20240801, 7, 32}};
  for (const auto& header : kHeaders) {
    if (bytes.size() < kHeaderBytes ||
        LittleEndian(bytes, 0, 4) != header.magic ||
        LittleEndian(bytes, 4, 4) != header.version) {
      continue;
    }
    const uint64_t count = LittleEndian(bytes, 8, 4);
    const uint64_t size = bytes.size() - kHeaderBytes;
    if (count * static_cast<uint64_t>(header.bits / 8) != size) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": the header declares ", count, " tokens of ",
                       header.bits, " bits, but ", size, " bytes follow it"));
    }
    if (bits != 0 && bits != header.bits) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": its header declares tokens of ", header.bits,
                       " bits, not ", bits));
    }
    if (count == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " has a header but no tokens"));
    }
    return TokenFormat{.begin = kHeaderBytes, .bits = header.bits};
  }
  const TokenFormat format = {.bits = bits == 0 ? 16 : bits};
  if (bytes.size() % static_cast<size_t>(format.bits / 8) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", bytes.size(), " bytes; tokens are uint",
                     format.bits, ", so ",
                     format.bits == 16 ? "their number must be even"
                                       : "their number must be a multiple of 4",
                     " (--token_bits)"));
  }
  return format;
}

// Adds the lengths of documents and ignores the targets of `eos`.
void SplitDocuments(int64_t seq_len, int32_t eos, TokenBatch& batch) {
  const auto length = static_cast<size_t>(seq_len);
  for (size_t row = 0; row < batch.inputs.size(); row += length) {
    std::vector<int64_t>& documents = batch.documents.emplace_back(1, 0);
    for (size_t i = row; i < row + length; ++i) {
      ++documents.back();
      if (batch.inputs[i] != eos) continue;
      batch.targets[i] = kIgnoredTarget;
      if (i + 1 < row + length) documents.push_back(0);
    }
  }
}

}  // namespace

int64_t MachineMemory() {
  struct sysinfo info;
  int64_t memory = std::numeric_limits<int64_t>::max();
  if (sysinfo(&info) == 0) {
    memory = static_cast<int64_t>(info.totalram + info.totalswap) *
             static_cast<int64_t>(info.mem_unit);
  }
  for (const char* path : {"/sys/fs/cgroup/memory.max",
                           "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    memory = std::min(memory, LimitIn(path));
  }
  for (const auto resource : {RLIMIT_AS, RLIMIT_DATA}) {
    struct rlimit limit;
    if (getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
      memory = std::min(memory, static_cast<int64_t>(limit.rlim_cur));
    }
  }
  return memory;
}

TokenSource::TokenSource(std::vector<uint16_t> narrow,
                         std::vector<int32_t> wide)
    : narrow_(std::move(narrow)),
      wide_(std::move(wide)),
      max_token_(wide_.empty()
                     ? *std::max_element(narrow_.begin(), narrow_.end())
                     : *std::max_element(wide_.begin(), wide_.end())),
      // Equal for equal tokens of either width.
      hash_(wide_.empty()
                ? checkpoint::HashRun(narrow_.data(), sizeof(uint16_t),
                                      /*first=*/size(), size())
                : checkpoint::HashRun(wide_.data(), sizeof(int32_t),
                                      /*first=*/size(), size())) {}

absl::StatusOr<TokenSource> TokenSource::FromText(
    const std::vector<std::string>& files, absl::Duration timeout) {
  std::string text;
  std::vector<uint16_t> tokens;
  for (const std::string& path : files) {
    CH_RETURN_IF_ERROR(AppendFile(path, timeout, text));
  }
  tokens.reserve(text.size());
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  if (tokens.empty()) {
    return absl::InvalidArgumentError("no text file is named");
  }
  return TokenSource(std::move(tokens), {});
}

absl::StatusOr<TokenSource> TokenSource::FromTokenFile(const std::string& path,
                                                       int bits) {
  std::string bytes;
  CH_RETURN_IF_ERROR(AppendFile(path, kPipeTimeout, bytes));
  CH_ASSIGN_OR_RETURN(const TokenFormat format, FormatOf(path, bytes, bits));
  const auto width = static_cast<size_t>(format.bits / 8);
  const size_t count = (bytes.size() - format.begin) / width;
  std::vector<uint16_t> narrow(format.bits == 16 ? count : 0);
  std::vector<int32_t> wide(format.bits == 32 ? count : 0);
  for (size_t i = 0; i < count; ++i) {
    const uint32_t token = LittleEndian(bytes, format.begin + i * width, width);
    if (token > std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": token ", i, " is ", token, "; is it a file of uint16?"));
    }
    if (format.bits == 16) {
      narrow[i] = static_cast<uint16_t>(token);
    } else {
      wide[i] = static_cast<int32_t>(token);
    }
  }
  return TokenSource(std::move(narrow), std::move(wide));
}

TokenBatch TokenSource::Rows(int64_t position, int64_t seq_len, int64_t begin,
                             int64_t end) const {
  TokenBatch batch;
  const auto count = static_cast<size_t>((end - begin) * seq_len);
  batch.inputs.reserve(count);
  batch.targets.reserve(count);
  int64_t at = PositionAfter(position, seq_len, begin);
  for (size_t i = 0; i < count; ++i) {
    batch.inputs.push_back(token(at));
    at = (at + 1) % size();
    batch.targets.push_back(token(at));
  }
  if (eos_.has_value()) SplitDocuments(seq_len, *eos_, batch);
  return batch;
}

void TokenSource::EndDocumentsAt(int32_t eos) {
  eos_ = eos;
  targets_ = 0;
  for (int64_t at = 0; at < size(); ++at) {
    if (token(at) != eos) ++targets_;
  }
}

int64_t TokenSource::CountTargets(int64_t position, int64_t count) const {
  if (!eos_.has_value()) return count;
  int64_t targets = count / size() * targets_;
  for (int64_t i = 0, at = position % size(); i < count % size(); ++i) {
    if (token(at) != *eos_) ++targets;
    at = at + 1 == size() ? 0 : at + 1;
  }
  return targets;
}

int64_t TokenSource::PositionAfter(int64_t position, int64_t seq_len,
                                   int64_t rows) const {
  return static_cast<int64_t>((position + Wide{rows} * seq_len) % size());
}

}  // namespace crosshatch::examples
