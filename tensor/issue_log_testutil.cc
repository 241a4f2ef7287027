// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/issue_log_testutil.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace crosshatch {
namespace {

// A lower bound on the finished tasks of each stream at a point.
using Clock = std::vector<int64_t>;

void Join(Clock& clock, const Clock& other) {
  for (size_t s = 0; s < clock.size(); ++s) {
    clock[s] = std::max(clock[s], other[s]);
  }
}

// Replays a log with vector clocks of the streams, the recorded points and the
// rank's thread, which precedes all that it issues.
class Follower {
 public:
  explicit Follower(size_t streams)
      : host_(streams), streams_(streams, Clock(streams)) {}

  void Take(const Issue& issue) {
    Clock& stream = streams_[static_cast<size_t>(issue.stream)];
    switch (issue.kind) {
      case Issue::Kind::kTask:
        Join(stream, host_);
        ++stream[static_cast<size_t>(issue.stream)];
        break;
      case Issue::Kind::kRecord:
        points_[issue.point] = stream;
        break;
      case Issue::Kind::kWait:
        Join(stream, points_.at(issue.point));
        break;
      case Issue::Kind::kHostWait:
        Join(host_, points_.at(issue.point));
        break;
      case Issue::Kind::kLease:
      case Issue::Kind::kUse:
      case Issue::Kind::kReturn:
        break;
    }
  }

  const Clock& at(int stream) const {
    return streams_[static_cast<size_t>(stream)];
  }
  /// Returns whether work issued to `stream` now starts after `point`.
  bool IsAfter(int stream, int64_t point) const {
    Clock now = at(stream);
    Join(now, host_);
    Clock joined = now;
    Join(joined, points_.at(point));
    return joined == now;
  }

 private:
  Clock host_;
  std::vector<Clock> streams_;
  std::map<int64_t, Clock> points_;
};

}  // namespace

bool IssueLog::IsCovered(int64_t index) const {
  Follower with(streams.size());
  Follower without(streams.size());
  for (const Issue& issue : issues) {
    with.Take(issue);
    if (issue.kind != Issue::Kind::kWait || issue.index != index) {
      without.Take(issue);
    }
    if (issue.kind == Issue::Kind::kTask &&
        with.at(issue.stream) != without.at(issue.stream)) {
      return false;
    }
  }
  return true;
}

bool IssueLog::NextLeaseIsOrdered(int64_t index) const {
  const LoggedLease& lease = leases[static_cast<size_t>(index)];
  Follower follower(streams.size());
  std::vector<int64_t> uses;
  bool begun = false;
  bool returned = false;
  for (const Issue& issue : issues) {
    follower.Take(issue);
    if (issue.kind == Issue::Kind::kLease && begun &&
        leases[static_cast<size_t>(issue.index)].data == lease.data) {
      return returned && std::all_of(uses.begin(), uses.end(), [&](int64_t u) {
               return follower.IsAfter(issue.stream, u);
             });
    }
    if (issue.index != index)
      continue;  // Also a wait's, which has no description.
    if (issue.kind == Issue::Kind::kLease) begun = true;
    if (issue.kind == Issue::Kind::kUse) uses.push_back(issue.point);
    if (issue.kind == Issue::Kind::kReturn) returned = true;
  }
  return true;
}

IssueLog::Work IssueLog::AwaitedBy(int64_t index) const {
  int64_t point = -1;
  for (const Issue& issue : issues) {
    if (issue.kind == Issue::Kind::kWait && issue.index == index) {
      point = issue.point;
    }
  }
  std::vector<int64_t> tasks(streams.size());
  for (const Issue& issue : issues) {
    int64_t& number = tasks[static_cast<size_t>(issue.stream)];
    if (issue.kind == Issue::Kind::kTask) ++number;
    if (issue.kind == Issue::Kind::kRecord && issue.point == point) {
      return {issue.stream, number};
    }
  }
  return {};
}

std::string IssueLog::DescribeWait(int64_t index) const {
  const LoggedWait& wait = waits[static_cast<size_t>(index)];
  return absl::StrCat("wait ", index, ": ", wait.stream, " for ",
                      wait.waits_for, wait.for_memory ? " (memory)" : "",
                      ", after '", wait.where, "'");
}

std::string IssueLog::DescribeLease(int64_t index) const {
  const LoggedLease& lease = leases[static_cast<size_t>(index)];
  return absl::StrCat("lease ", index, ": ", Name(lease.memory_class), " of ",
                      lease.bytes, " bytes on ", lease.stream, ", after '",
                      lease.where, "'");
}

}  // namespace crosshatch
