// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/standard_output.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/status/status.h"

namespace crosshatch {
namespace {

/// Whether it is a pipe that is open at this end alone.
bool IsReadByNobody() {
  pollfd output = {.fd = STDOUT_FILENO, .events = 0, .revents = 0};
  return poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0;
}

}  // namespace

absl::Status FlushStandardOutput() {
  constexpr char kFailed[] = "cannot write to standard output";
  const int error = std::fflush(stdout) == 0 ? 0 : errno;
  if (error == 0 && std::ferror(stdout) == 0) return absl::OkStatus();
  if (IsReadByNobody()) return absl::OkStatus();
  return error == 0 ? absl::DataLossError(kFailed)
                    : absl::ErrnoToStatus(error, kFailed);
}

}  // namespace crosshatch
