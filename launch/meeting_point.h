// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_MEETING_POINT_H_
#define CROSSHATCH_LAUNCH_MEETING_POINT_H_

#include <string>

#include "absl/status/statusor.h"
#include "crosshatch/launch/launch_info.h"

namespace crosshatch {

/// Where the processes of a job meet, and what they know one another by.
struct MeetingPoint {
  std::string host;
  /// 0 on rank 0: any that is free, to be told to the others by MPI.
  int port = 0;
  std::string token;
};

/// The meeting point as far as the environment tells it: all of it, or, under
/// mpirun, without port and token.
///
/// Where the user gave no token it is made of what the launcher tells all
/// processes, which others on the machine can find out: it keeps jobs apart and
/// is no secret. The job's id is part of it.
MeetingPoint MeetingPointOf(const LaunchInfo& info);

/// Whether rank 0 has to choose the port and tell the others.
bool IsToBeChosen(const MeetingPoint& point);

/// 128 random bits in hexadecimal digits.
/// \error kInternal with the system's reason.
absl::StatusOr<std::string> RandomToken();

/// \name The meeting point as rank 0 tells it.
/// @{
std::string ToText(const MeetingPoint& point);
/// \error kInternal if `text` is not of ToText.
absl::StatusOr<MeetingPoint> MeetingPointFromText(const std::string& text);
/// @}

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_MEETING_POINT_H_
