// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_LOCAL_RENDEZVOUS_H_
#define CROSSHATCH_COMM_LOCAL_RENDEZVOUS_H_

/// \file
/// The rendezvous of the members of a group, before they access memory.

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "crosshatch/base/wait_graph.h"
#include "crosshatch/comm/fingerprint.h"
#include "crosshatch/comm/local/late_wait.h"
#include "crosshatch/comm/local/wake_word.h"
#include "crosshatch/comm/watch_clock.h"

namespace crosshatch::internal {

/// A rendezvous of n threads, which is used again and again. It fails for all
/// if they disagree, if the wait graph finds that one can never come, or by
/// Fail. Once failed, it stays so.
///
/// A member comes again only after all others have left. The caller ensures
/// that with a ThreadBarrier if members use one another's memory.
class Rendezvous {
 public:
  /// Called with a failure found here, without a lock, possibly on several
  /// threads. Returns the members' error: `failure`, or an earlier one.
  using OnBroken = std::function<absl::Status(const absl::Status& failure)>;

  /// \param graph outlives this.
  /// \param group names the group in messages.
  /// \param world_ranks of the members, by index.
  /// \param agents the agents on which the members come, by index.
  Rendezvous(WaitGraph& graph, std::string group, std::vector<int> world_ranks,
             const std::vector<AgentId>& agents, OnBroken on_broken);
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  /// Sets the agent on which `member` comes from now on.
  void SetAgent(int member, AgentId agent);

  /// Waits until all members have come. The last to come compares their
  /// fingerprints (CheckAgreement). What a member wrote before it came, the
  /// others may read afterwards.
  absl::Status Agree(int member, const Fingerprint& fingerprint);
  /// Waits likewise for `what`, and returns copies of the members' blobs.
  absl::StatusOr<std::vector<std::string>> Gather(int member, std::string blob,
                                                  const std::string& what);

  /// Releases all members with `failure`, unless it has failed already.
  void Fail(const absl::Status& failure);

  /// Returns who waits, if members have waited for at least `least`. Called by
  /// the watchdog.
  std::optional<LateWait> FindLate(const WatchMoment& now,
                                   absl::Duration least);

 private:
  struct Member {
    AgentId agent;
    bool came = false;
    /// Registered in the graph as waiting.
    bool waits = false;
  };

  // \pre mutex_ is held
  std::vector<AgentId> MissingAgents() const;
  std::string DescribeMembers(absl::string_view before) const;
  void EndWaits();

  void WaitFor(int member, uint32_t epoch);
  void OnStall(uint32_t epoch, const std::string& reason);
  void Break(const absl::Status& failure);

  WaitGraph& graph_;
  const std::string group_;
  const std::vector<int> world_ranks_;
  const OnBroken on_broken_;

  std::mutex mutex_;
  std::vector<Member> members_;
  /// By member. Valid while the member has come and all have not.
  std::vector<const Fingerprint*> fingerprints_;
  int num_came_ = 0;
  SteadyTime first_came_;
  absl::Status failure_;
  // For the watchdog: the last round that it observed, and when that began.
  std::optional<uint32_t> seen_;
  absl::Duration since_;

  /// For even and odd rounds, by member. When the next round is complete, all
  /// have read the blobs of the previous one.
  std::vector<std::string> blobs_[2];

  /// Twice the number of completed rounds, plus 1 after a failure. Members wait
  /// for it to change; changed with mutex_ held.
  WakeWord epoch_;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_LOCAL_RENDEZVOUS_H_
