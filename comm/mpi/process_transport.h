// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_MPI_PROCESS_TRANSPORT_H_
#define CROSSHATCH_COMM_MPI_PROCESS_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "crosshatch/comm/data_plane.h"
#include "crosshatch/comm/group_key.h"
#include "crosshatch/comm/mpi/engine_span.h"
#include "crosshatch/comm/mpi/process_job.h"
#include "crosshatch/comm/mpi/transfer.h"
#include "crosshatch/comm/transport.h"
#include "crosshatch/tensor/kernels/kernel_table.h"

namespace crosshatch::internal {

/// One process's end of a group. At each collective every member tells all
/// others what it has come to; when all have, and agree, data move (see
/// docs/mpi.md). What is small comes along with the telling, and is used only
/// after the comparison too.
class ProcessTransport final : public Transport {
 public:
  /// \param context of this rank; outlives what is run.
  /// \param member index of this rank in `key`.
  /// \param max_message_bytes of data, at least 8; the same on all members.
  /// \param planes that data go by, in place of messages; may be null. Outlive
  ///     what is run.
  ProcessTransport(std::shared_ptr<ProcessJob> job, RankContext& context,
                   const GroupKey& key, int member, int64_t max_message_bytes,
                   DataPlanes* planes);

  void Bind(Stream& stream) override;
  absl::Status Run(const Collective& collective, const Fingerprint& fingerprint,
                   KernelContext& context) override;
  absl::StatusOr<std::vector<std::string>> Gather(
      std::string blob, const std::string& what) override;
  void Fail(const absl::Status& failure) override;

 private:
  /// What goes from this rank to one member, or from it to this rank.
  struct Part {
    absl::Span<const Segment> list;
    int64_t begin = 0;
    int64_t elems = 0;
  };

  int size() const { return group_->size(); }
  int me() const { return group_->me; }

  /// Where the stream's spans go: nowhere where the rank's thread compares, on
  /// behalf of a device.
  SpanRow Spans() const;

  /// Fills sends_ and receives_, by member; in a reduction receives_ is what
  /// each gives to the sum.
  void PlanParts(const Collective& collective);
  bool IsDirect(const Collective& collective) const;

  /// The members meet, and issue their parts to their data planes.
  absl::Status RunByPlane(const Collective& collective,
                          const Fingerprint& fingerprint);
  absl::Status IssueToPlane(const Collective& collective, int64_t sequence,
                            bool same_shape);
  absl::StatusOr<std::shared_ptr<DataPlane>> Connect();
  /// Gathers a blob of all members, in one order with their collectives and by
  /// what runs those.
  absl::StatusOr<std::vector<std::string>> GatherInOrder(
      const std::string& blob);
  /// Whether the 8 bytes with the members' notes are alike and not 0.
  bool HaveSameShape(int64_t meeting) const;

  /// Tells all members of this rank's fingerprint and waits for theirs.
  absl::Status Meet(int64_t meeting, const Collective& collective,
                    const Fingerprint& fingerprint);
  /// Sends notes_ and waits for those of the others.
  /// \param own this rank's note.
  absl::Status ExchangeNotes(Meetings& meetings, int64_t meeting,
                             std::string own, const std::string* gathering);
  /// Who came and who did not. The lock is held.
  std::string DescribeMembers(const Meetings& meetings, int64_t meeting,
                              const std::string* gathering) const;
  absl::Status CheckMembers(int64_t meeting, const Fingerprint& fingerprint);

  absl::Status Move(int64_t meeting, const Collective& collective);
  absl::Status MoveLists(int64_t meeting, const Collective& collective);
  absl::Status MoveAndReduce(int64_t meeting, const Collective& collective);
  absl::Status GatherPieces(int64_t meeting, const Collective& collective);
  void CopyOwn(const Collective& collective);

  int64_t PieceElems(const Collective& collective) const;

  const std::shared_ptr<ProcessJob> job_;
  RankContext& context_;
  const KernelTable& kernels_;
  const std::shared_ptr<JobGroup> group_;
  const std::string description_;
  const int64_t max_message_bytes_;
  DataPlanes* const planes_;
  /// Null before the first collective.
  std::shared_ptr<DataPlane> plane_;
  Stream* queue_ = nullptr;
  /// What this member's note says of its lists.
  uint64_t shape_ = 0;

  // The stream's worker alone uses these.
  int64_t next_meeting_ = 0;
  int tag_ = 0;
  std::vector<Part> sends_;
  std::vector<Part> receives_;
  std::vector<Fingerprint> fingerprints_;
  std::vector<const Fingerprint*> pointers_;
  Transfer transfer_;

  // The rank's thread alone uses it.
  int64_t next_gathering_ = 0;

  /// Notes on their way, by member, of collectives and of gatherings.
  struct Outgoing {
    std::vector<std::string> notes;
    std::vector<LinkRequest> requests;
  };
  Outgoing to_meet_;
  Outgoing to_gather_;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_MPI_PROCESS_TRANSPORT_H_
