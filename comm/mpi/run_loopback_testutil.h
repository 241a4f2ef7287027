// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_MPI_RUN_LOOPBACK_TESTUTIL_H_
#define CROSSHATCH_COMM_MPI_RUN_LOOPBACK_TESTUTIL_H_

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "crosshatch/comm/job_failure.h"
#include "crosshatch/comm/mpi/loopback_link_testutil.h"
#include "crosshatch/comm/mpi/run_process.h"
#include "crosshatch/comm/world.h"

namespace crosshatch::internal {

class CoordinatorForTest;

/// A channel whose coordinator is the test.
class FailureChannelForTest final : public FailureChannel {
 public:
  /// \param coordinator receives reports; may be null. Must outlive this.
  explicit FailureChannelForTest(CoordinatorForTest* coordinator = nullptr)
      : coordinator_(coordinator) {}

  void Report(const FailureNotice& notice) override;
  absl::Status loss() const override;
  void OnFailure(Listener listener) override;
  void SetActivity(Activity activity) override;

  /// Delivers `notice` as if the coordinator had sent it.
  void Deliver(const FailureNotice& notice);
  /// Returns what the rank does; empty without a rank.
  std::string Query();
  std::vector<FailureNotice> reported() const;

 private:
  CoordinatorForTest* const coordinator_;
  mutable std::mutex mutex_;
  Listener listener_;
  std::vector<FailureNotice> notices_;
  std::mutex activity_mutex_;  // An activity may itself report.
  Activity activity_;
  mutable std::mutex reported_mutex_;
  std::vector<FailureNotice> reported_;
};

/// The channels of a job. All receive the first failure that one reports.
class CoordinatorForTest {
 public:
  explicit CoordinatorForTest(int ranks);

  FailureChannelForTest& operator[](int rank) {
    return *channels_[static_cast<size_t>(rank)];
  }
  void OnReport(const FailureNotice& notice);

 private:
  std::mutex mutex_;
  bool is_decided_ = false;
  std::vector<std::unique_ptr<FailureChannelForTest>> channels_;
};

/// Runs `fn` on the engine of processes, with threads as processes, and returns
/// the result of each.
/// \param options by rank
/// \param returned called for each rank that has returned
std::vector<ProcessResult> RunLoopback(
    LoopbackWire& wire, int ranks, absl::FunctionRef<absl::Status(World&)> fn,
    absl::FunctionRef<MpiOptions(int rank)> options,
    const std::function<void(int rank)>& returned = nullptr);

/// Polls until `condition` holds.
void SleepUntil(absl::FunctionRef<bool()> condition);

/// An all-gather of lists that are too long for payloads.
class LongGather {
 public:
  explicit LongGather(World& world);

  absl::Status Issue();

 private:
  World& world_;
  std::vector<float> mine_, all_;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_MPI_RUN_LOOPBACK_TESTUTIL_H_
