// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/meeting_point.h"

#include <limits.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace crosshatch {
namespace {

/// What the other hosts of a job can reach this one by.
std::string ThisHost() {
  char host[HOST_NAME_MAX + 1] = "";
  gethostname(host, sizeof host - 1);
  return host;
}

}  // namespace

MeetingPoint MeetingPointOf(const LaunchInfo& info) {
  MeetingPoint point = {
      .host = info.host, .port = info.port, .token = info.token};
  if (point.host.empty()) {
    const bool is_one_host = info.size == 1 || info.local_size == info.size;
    point.host = is_one_host ? "127.0.0.1" : ThisHost();
  }
  // Under mpirun it is random, and another one for each job.
  if (point.port == 0) return point;
  if (point.token.empty()) point.token = absl::StrCat("job ", info.job);
  if (!info.id.empty()) absl::StrAppend(&point.token, " id ", info.id);
  return point;
}

bool IsToBeChosen(const MeetingPoint& point) { return point.port == 0; }

absl::StatusOr<std::string> RandomToken() {
  char bytes[16];
  if (getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes)) {
    return absl::InternalError(
        absl::StrCat("no random token for the job: ", std::strerror(errno)));
  }
  return absl::BytesToHexString(absl::string_view(bytes, sizeof bytes));
}

std::string ToText(const MeetingPoint& point) {
  return absl::StrCat(point.port, "\n", point.host, "\n", point.token);
}

absl::StatusOr<MeetingPoint> MeetingPointFromText(const std::string& text) {
  const std::vector<std::string> parts =
      absl::StrSplit(text, absl::MaxSplits('\n', 2));
  MeetingPoint point;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &point.port)) {
    return absl::InternalError(
        absl::StrCat("rank 0 told no meeting point but '", text, "'"));
  }
  point.host = parts[1];
  point.token = parts[2];
  return point;
}

}  // namespace crosshatch
