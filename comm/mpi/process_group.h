// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_MPI_PROCESS_GROUP_H_
#define CROSSHATCH_COMM_MPI_PROCESS_GROUP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/comm/control_plane.h"
#include "crosshatch/comm/mpi/process_job.h"

namespace crosshatch::internal {

/// One process's control group. At each collective every member sends all
/// others its fingerprint and payloads, and compares when it has all
/// (docs/mpi.md).
class ProcessGroup final : public ControlGroup {
 public:
  /// \param context of this rank; must outlive issued work
  /// \param member index of this rank in `key`
  /// \param timeout the longest time that a member may keep the others waiting
  ProcessGroup(std::shared_ptr<ProcessJob> job, RankContext& context,
               const GroupKey& key, int member, absl::Duration timeout);

  void Bind(Stream& stream) override;
  absl::Status Agree(const Fingerprint& fingerprint,
                     absl::FunctionRef<void(PayloadRoom)> offer) override;
  absl::string_view Of(int member) const override {
    return PayloadOf(agreements_, member);
  }
  void Done() override;
  absl::StatusOr<std::vector<std::string>> Gather(
      GatherOrder order, std::string blob, const std::string& what) override;
  void Watch(std::shared_ptr<DataPlane> plane, bool blocks) override;
  absl::Status Fail(const absl::Status& failure) override;

 private:
  using Lane = JobGroup::Lane;

  int size() const { return group_->size(); }
  int me() const { return group_->me; }

  /// Begins the next round. Returns this member's message; the lane has copies
  /// for the others.
  std::string Start(Lane& lane, const Fingerprint& fingerprint);
  /// Sends the lane's messages, and waits for those of the others.
  /// \param own this member's message.
  absl::Status Exchange(Lane& lane, std::string own);
  /// Drops the messages of the last round.
  void Close(Lane& lane);
  absl::string_view PayloadOf(const Lane& lane, int member) const;
  /// Returns which members have come.
  /// \pre The lock is held.
  std::string DescribeMembers(Lane& lane) const;
  absl::Status CheckMembers(Lane& lane, const Fingerprint& fingerprint);

  const std::shared_ptr<ProcessJob> job_;
  RankContext& context_;
  const std::shared_ptr<JobGroup> group_;
  const std::string description_;
  Lane& agreements_;
  Lane& gathers_;

  // For the thread that runs the stream's tasks only.
  SpanRow spans_;
  bool is_watched_ = false;
};

/// The control plane of a rank that is a process.
class ProcessControlPlane final : public ControlPlane {
 public:
  ProcessControlPlane(std::shared_ptr<ProcessJob> job, RankContext& context)
      : job_(std::move(job)), context_(context) {}

  absl::StatusOr<std::unique_ptr<ControlGroup>> Join(
      const GroupKey& key, int member, absl::Duration timeout) override {
    return std::make_unique<ProcessGroup>(job_, context_, key, member, timeout);
  }
  absl::Duration timeout() const override { return job_->timeout(); }
  void FailRank(const absl::Status& error) override { job_->FailRank(error); }

 private:
  const std::shared_ptr<ProcessJob> job_;
  RankContext& context_;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_MPI_PROCESS_GROUP_H_
