// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_MPI_MESSAGE_PLANE_H_
#define CROSSHATCH_COMM_MPI_MESSAGE_PLANE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "crosshatch/comm/data_plane.h"
#include "crosshatch/comm/mpi/process_job.h"

namespace crosshatch::internal {

/// Data planes of processes that exchange messages over the job's link. Small
/// data are payloads of the agreement (docs/mpi.md).
class MessagePlanes final : public DataPlanes {
 public:
  /// \param name "mpi" or "ucx".
  /// \param max_message_bytes of data, at least 8; the same on all members.
  MessagePlanes(std::string name, std::shared_ptr<ProcessJob> job,
                int64_t max_message_bytes)
      : name_(std::move(name)),
        job_(std::move(job)),
        max_message_bytes_(max_message_bytes) {}

  const std::string& name() const override { return name_; }
  bool connects_alone() const override { return true; }
  absl::StatusOr<std::unique_ptr<DataPlane>> Connect(
      const GroupKey& key, int member, RankContext& context,
      absl::Duration timeout, Exchange exchange) override;

 private:
  const std::string name_;
  const std::shared_ptr<ProcessJob> job_;
  const int64_t max_message_bytes_;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_MPI_MESSAGE_PLANE_H_
