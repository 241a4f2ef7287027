// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/meeting_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace crosshatch {
namespace {

absl::Status Unwritten(const std::string& path) {
  return absl::UnavailableError(absl::StrCat(
      "cannot write ", path,
      ", by which the processes of this host meet: ", std::strerror(errno)));
}

}  // namespace

bool CanMeetByFile(const std::string& path) {
  if (path.empty()) return false;
  struct stat directory = {};
  return stat(path.substr(0, path.rfind('/')).c_str(), &directory) == 0 &&
         S_ISDIR(directory.st_mode) && directory.st_uid == geteuid() &&
         (directory.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

absl::Status WriteMeetingFile(const std::string& path,
                              const std::string& text) {
  const std::string unfinished = path + ".new";
  const int file = open(unfinished.c_str(),
                        O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, S_IRUSR);
  if (file < 0) return Unwritten(unfinished);
  const bool is_written = write(file, text.data(), text.size()) ==
                          static_cast<ssize_t>(text.size());
  close(file);
  if (!is_written || std::rename(unfinished.c_str(), path.c_str()) != 0) {
    const absl::Status error = Unwritten(path);
    unlink(unfinished.c_str());
    return error;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> AwaitMeetingFile(const std::string& path,
                                             absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  absl::Duration pause = absl::Milliseconds(1);
  while (true) {
    std::ifstream file(path);
    if (file.is_open()) {
      return std::string(std::istreambuf_iterator<char>(file), {});
    }
    if (absl::Now() > until) {
      return absl::DeadlineExceededError(
          absl::StrCat("rank 0 has not written ", path, " within ",
                       absl::FormatDuration(timeout)));
    }
    absl::SleepFor(pause);
    pause = std::min(2 * pause, absl::Milliseconds(20));
  }
}

}  // namespace crosshatch
