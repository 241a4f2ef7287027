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

/// One process's end of a group. At each collective every member sends all
/// others its fingerprint and its payloads, and compares when it has those of
/// all (docs/mpi.md).
class ProcessGroup final : public ControlGroup {
 public:
  /// \param context of this rank; outlives what is issued.
  /// \param member index of this rank in `key`.
  ProcessGroup(std::shared_ptr<ProcessJob> job, RankContext& context,
               const GroupKey& key, int member);

  void Bind(Stream& stream) override;
  absl::Status Agree(const Fingerprint& fingerprint,
                     absl::FunctionRef<void(PayloadRoom)> offer) override;
  absl::string_view Of(int member) const override;
  void Done() override;
  absl::StatusOr<std::vector<std::string>> Gather(
      std::string blob, const std::string& what) override;
  absl::StatusOr<std::vector<std::string>> GatherInOrder(
      const std::string& blob) override;
  void Watch(std::shared_ptr<DataPlane> plane, bool blocks) override;
  absl::Status Fail(const absl::Status& failure) override;

 private:
  int size() const { return group_->size(); }
  int me() const { return group_->me; }

  /// Begins the next round of collectives; returns this member's message, of
  /// which to_agree_ has copies.
  std::string StartAgreement(const Fingerprint& fingerprint);
  /// Sends the messages of others and waits for theirs.
  /// \param own this rank's message.
  absl::Status ExchangeMessages(Arrivals& rounds, int64_t round,
                                std::string own, const std::string* gathering);
  /// Returns which members have come. The lock is held.
  std::string DescribeMembers(const Arrivals& rounds, int64_t round,
                              const std::string* gathering) const;
  absl::Status CheckMembers(const Fingerprint& fingerprint);
  /// Gives up the messages of the last round.
  void Close();

  const std::shared_ptr<ProcessJob> job_;
  RankContext& context_;
  const std::shared_ptr<JobGroup> group_;
  const std::string description_;

  // What runs the stream's tasks alone uses these.
  SpanRow spans_;
  /// The last round of collectives, and whether its messages are still used.
  int64_t round_ = -1;
  bool is_open_ = false;
  bool is_watched_ = false;
  std::vector<Fingerprint> fingerprints_;
  std::vector<const Fingerprint*> pointers_;

  // The rank's thread alone uses it.
  int64_t next_gathering_ = 0;

  /// Notes on their way, by member, of collectives and of gatherings.
  struct Outgoing {
    std::vector<std::string> messages;
    std::vector<LinkRequest> requests;
  };
  Outgoing to_agree_;
  Outgoing to_gather_;
};

/// The control plane of a rank that is a process.
class ProcessControlPlane final : public ControlPlane {
 public:
  ProcessControlPlane(std::shared_ptr<ProcessJob> job, RankContext& context)
      : job_(std::move(job)), context_(context) {}

  absl::StatusOr<std::unique_ptr<ControlGroup>> Join(const GroupKey& key,
                                                     int member) override {
    return std::make_unique<ProcessGroup>(job_, context_, key, member);
  }
  absl::Duration timeout() const override { return job_->timeout(); }
  void FailRank(const absl::Status& error) override { job_->FailRank(error); }

 private:
  const std::shared_ptr<ProcessJob> job_;
  RankContext& context_;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_MPI_PROCESS_GROUP_H_
