// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/process.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <utility>

#include "absl/status/status.h"

namespace crosshatch {
namespace {

constexpr int kPatienceMs = 2000;
constexpr char kCut[] = " ...";

/// Returns whether it is a pipe without a reader.
bool IsReadByNobody() {
  pollfd output = {.fd = STDOUT_FILENO, .events = 0, .revents = 0};
  return poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0;
}

}  // namespace

void EndProcess(std::string line) {
  if (!line.empty()) {
    if (line.size() >= PIPE_BUF) {
      line.resize(PIPE_BUF - sizeof(kCut));
      line += kCut;
    }
    line += '\n';
    // A pipe that polls writable takes PIPE_BUF bytes without blocking.
    pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
    if (poll(&out, 1, kPatienceMs) > 0 && (out.revents & POLLOUT) != 0) {
      static_cast<void>(!write(STDERR_FILENO, line.data(), line.size()));
    }
  }
  _exit(1);
}

absl::Status FlushStandardOutput() {
  constexpr char kFailed[] = "cannot write to standard output";
  const int error = std::fflush(stdout) == 0 ? 0 : errno;
  if (error == 0 && std::ferror(stdout) == 0) return absl::OkStatus();
  if (IsReadByNobody()) return absl::OkStatus();
  return error == 0 ? absl::DataLossError(kFailed)
                    : absl::ErrnoToStatus(error, kFailed);
}

std::string ThisMachine() {
  char name[HOST_NAME_MAX + 1] = "?";
  gethostname(name, sizeof name - 1);
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return std::string(name) + "\n" + id;
}

}  // namespace crosshatch
