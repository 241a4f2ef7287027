// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_COORDINATION_COORDINATION_CLIENT_H_
#define CROSSHATCH_COMM_COORDINATION_COORDINATION_CLIENT_H_

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "crosshatch/comm/coordination/connection.h"
#include "crosshatch/comm/coordination/coordinator_state.h"
#include "crosshatch/comm/job_failure.h"
#include "crosshatch/comm/watch_clock.h"

namespace crosshatch::coordination {

struct ClientOptions {
  CoordinationTimes times;
  /// How long this rank's function may go on after the job has failed. After
  /// that the process is ended, because a thread cannot be stopped.
  absl::Duration leave = absl::Minutes(10);
  /// Called once, on a thread of the client, with the job's failure, before the
  /// client is destroyed. It may block; the process still ends in time.
  /// \param own the error that this rank has reported, if the coordinator was
  ///     lost before it announced the failure, so that no other process knows
  ///     it; else OK.
  std::function<void(const FailureNotice&, const absl::Status& own)> on_failure;
  /// Called by the watchdog when `leave` is over. Null: EndProcess.
  std::function<void(const std::string& message)> end_process;
};

/// A rank's connection to the coordinator; rank 0 has one too.
/// \threadsafety all members may be called from any thread.
class CoordinationClient final : public FailureChannel {
 public:
  /// Registers as `self`. Retries until a coordinator answers.
  /// \error kDeadlineExceeded if none does within times.start;
  ///     kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<CoordinationClient>> Connect(
      const std::string& host, int port, const Member& self,
      const std::string& token, ClientOptions options);

  /// Ends the connection. Only Leave sends a goodbye.
  ~CoordinationClient() override;
  CoordinationClient(const CoordinationClient&) = delete;
  CoordinationClient& operator=(const CoordinationClient&) = delete;

  /// Waits until all ranks of the job have joined.
  /// \error the failure of the start, the same on all ranks, which failure()
  ///     then returns, too; kUnauthenticated for another job's token.
  absl::Status AwaitStart();

  /// Returns the address at which this rank reaches the coordinator.
  std::string coordinator_host() const;

  /// Returns the ranks of this machine and their process ids: the lowest 64,
  /// ascending. Empty until all ranks have joined.
  std::vector<std::pair<int, int>> neighbours() const;

  /// Returns the blobs of all ranks, by rank. Called by all ranks in the same
  /// order, one call at a time. Ranks that do not come within `timeout` fail
  /// the job, and so do more than 3 MiB of all ranks.
  /// \param name for errors.
  /// \error kResourceExhausted for a blob of more than 1 MiB; kAborted if the
  ///     job has failed.
  absl::StatusOr<std::vector<std::string>> Gather(const std::string& name,
                                                  const std::string& blob,
                                                  absl::Duration timeout);

  /// Ends this rank, whose function has returned. Waits for those of the
  /// others, which may need this process until then.
  /// \returns OK, or the result of the failed job; on_failure has returned
  ///     then.
  absl::Status Leave();

  /// Returns the job's failure, if it is known here.
  std::optional<FailureNotice> failure() const;

  void Report(const FailureNotice& notice) override;
  absl::Status loss() const override;
  void OnFailure(Listener listener) override;
  void SetActivity(Activity activity) override;

 private:
  CoordinationClient(Member self, ClientOptions options);

  absl::Status Register(const std::string& host, int port,
                        const std::string& token);
  void Send(const ClientMessage& message);
  void Run();
  /// Ends the process if its rank does not return in time. Takes no lock but
  /// mutex_, which is not held during any call that may block.
  void Watch();
  std::string CurrentActivity();
  void WakeThread();

  /// \name With mutex_ held
  /// @{
  void Receive();
  void Received(const ServerMessage& message);
  /// Handles the loss of the coordinator.
  void Lose(const std::string& how);
  void Add(FailureNotice notice);
  void CheckSilence();
  absl::Time Now();
  /// @}

  const Member self_;
  const ClientOptions options_;

  const File wake_;  // An eventfd that wakes the thread.

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Connection> connection_;
  internal::WatchClock clock_;
  absl::Time last_received_;
  absl::Time next_heartbeat_;
  std::optional<Started> started_;  // Once all ranks have joined.
  int num_received_ = 0;            // Messages of the coordinator.
  std::string refused_;
  bool is_dismissed_ = false;
  bool is_leaving_ = false;
  bool is_broken_ = false;
  bool is_queried_ = false;
  bool is_ending_ = false;
  /// The job's failure, then later losses.
  std::vector<FailureNotice> notices_;
  absl::Time failed_at_;
  bool has_lost_coordinator_ = false;
  absl::Status own_error_;  // The first that this rank has reported.
  absl::Status own_at_loss_;
  bool has_announced_ = false;  // To ClientOptions::on_failure.
  std::optional<Gathered> gathered_;

  /// Held while the members below are called; never locked while mutex_ is
  /// held.
  std::mutex listener_mutex_;
  Listener listener_;
  size_t num_delivered_ = 0;
  std::mutex activity_mutex_;
  Activity activity_;

  std::thread thread_;
  std::thread watchdog_;
};

}  // namespace crosshatch::coordination

#endif  // CROSSHATCH_COMM_COORDINATION_COORDINATION_CLIENT_H_
