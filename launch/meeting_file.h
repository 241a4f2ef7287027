// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_MEETING_FILE_H_
#define CROSSHATCH_LAUNCH_MEETING_FILE_H_

/// \file
/// The file by which processes that mpirun started on one host meet before MPI
/// has started, so that a process that is lost meanwhile is missed and named.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace crosshatch {

/// Whether `path` (LaunchInfo::meeting_file) is in a directory that is there,
/// of this user, and that nobody else may write to. The same for all processes
/// of a job.
bool CanMeetByFile(const std::string& path);

/// Writes the file for this user alone; readers see all of it or none.
/// \error kUnavailable naming the file and the system's reason.
absl::Status WriteMeetingFile(const std::string& path, const std::string& text);

/// Waits for the file and reads it.
/// \error kDeadlineExceeded naming the file.
absl::StatusOr<std::string> AwaitMeetingFile(const std::string& path,
                                             absl::Duration timeout);

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_MEETING_FILE_H_
