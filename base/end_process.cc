// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/end_process.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <utility>

namespace crosshatch {
namespace {

constexpr int kPatienceMs = 2000;
constexpr char kCut[] = " ...";

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

}  // namespace crosshatch
