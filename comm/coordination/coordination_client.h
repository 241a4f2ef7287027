// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_COORDINATION_COORDINATION_CLIENT_H_
#define CROSSHATCH_COMM_COORDINATION_COORDINATION_CLIENT_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "crosshatch/comm/coordination/coordinator_state.h"
#include "crosshatch/comm/coordination/wire.h"
#include "crosshatch/comm/job_failure.h"

namespace crosshatch::coordination {

/// What a rank knows of the others.
struct Roster {
  /// Whether all have come. Until then the rest is not known.
  bool has_started = false;
  Member rank_0;
};

struct ClientOptions {
  CoordinationTimes times;
  /// How long this rank's function may go on after it was told that the job has
  /// failed. One that takes longer ends the process: nothing else can stop it.
  absl::Duration leave = absl::Minutes(10);
  /// Called once, on a thread of the client, with what the job failed with,
  /// before the client is gone. It may block: the process ends in time all the
  /// same.
  std::function<void(const FailureNotice&, const Roster&)> on_failure;
  /// Called by the watchdog when `leave` is over. Null: EndProcess.
  std::function<void(const std::string& message)> end_process;
  /// Asked about once in a second while nobody listens: whether somebody may
  /// still come. Null: until times.start is over.
  std::function<bool()> still_hopes;
};

/// A rank's end of the coordination service; rank 0 has one too.
/// \threadsafety all members may be called from any thread.
class CoordinationClient final : public FailureChannel {
 public:
  /// Registers as `self`.
  /// \error kDeadlineExceeded if nobody listens within times.start; kCancelled
  ///     where options.still_hopes has said no before; kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<CoordinationClient>> Connect(
      const std::string& host, int port, const Member& self,
      const std::string& token, ClientOptions options);

  /// Ends the connection, without a goodbye unless Leave has said it.
  ~CoordinationClient() override;
  CoordinationClient(const CoordinationClient&) = delete;
  CoordinationClient& operator=(const CoordinationClient&) = delete;

  /// Waits until all ranks of the job are there.
  /// \error what the job failed with at its start, the same on all ranks, and
  ///     then failure() has it; kUnauthenticated for another job's token.
  absl::Status AwaitStart();

  /// Returns the blobs of all ranks for `name`, by rank. Called by all ranks.
  /// \error kDeadlineExceeded naming the ranks that did not come;
  ///     kResourceExhausted for a blob of more than 1 MiB, or 3 MiB of all;
  ///     kAborted if the job has failed.
  absl::StatusOr<std::vector<std::string>> Gather(const std::string& name,
                                                  const std::string& blob,
                                                  absl::Duration timeout);

  /// This rank's function has returned. Waits for those of the others, which
  /// may need this process until then.
  /// \returns OK, or what the job failed with (ResultOf); then on_failure has
  ///     returned.
  absl::Status Leave();

  /// What the job failed with, if this rank has been told.
  std::optional<FailureNotice> failure() const;

  void Report(const FailureNotice& notice) override;
  absl::Status loss() const override;
  void OnFailure(Listener listener) override;
  void SetActivity(Activity activity) override;

 private:
  CoordinationClient(Member self, ClientOptions options);

  void Received(const ServerMessage& message);
  void Broken();
  /// The coordinator is dead, as far as can be seen from here.
  /// \pre mutex_ is held.
  void Lose(const std::string& how);
  /// \pre mutex_ is held.
  void Add(FailureNotice notice);
  std::string CurrentActivity();
  void Run();
  /// Ends the process once its rank is late. Takes no lock but mutex_, which
  /// nobody holds during a call that may block.
  void Watch();
  /// \pre mutex_ is held.
  void CheckSilence();

  const Member self_;
  const ClientOptions options_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  absl::Time last_received_;
  absl::Time last_check_;
  absl::Time next_heartbeat_;
  Roster roster_;
  std::string refused_;
  bool is_dismissed_ = false;
  bool is_leaving_ = false;
  bool is_broken_ = false;
  bool is_queried_ = false;
  bool is_ending_ = false;
  /// What the job failed with, then who was lost since.
  std::vector<FailureNotice> notices_;
  absl::Time failed_at_;
  bool has_lost_coordinator_ = false;
  bool has_news_ = false;       // A listener or a notice.
  bool has_announced_ = false;  // To ClientOptions::on_failure.
  int64_t last_request_ = 0;
  std::map<int64_t, std::optional<Answer>> answers_;  // Of pending requests.

  /// Held during calls of what it guards, and never while mutex_ is.
  std::mutex listener_mutex_;
  Listener listener_;
  size_t num_delivered_ = 0;
  std::mutex activity_mutex_;
  Activity activity_;

  std::unique_ptr<ClientWire> wire_;
  std::thread thread_;
  std::thread watchdog_;
};

}  // namespace crosshatch::coordination

#endif  // CROSSHATCH_COMM_COORDINATION_COORDINATION_CLIENT_H_
