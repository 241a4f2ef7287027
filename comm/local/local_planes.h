// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_LOCAL_LOCAL_PLANES_H_
#define CROSSHATCH_COMM_LOCAL_LOCAL_PLANES_H_

#include <memory>
#include <string>

#include "crosshatch/comm/control_plane.h"
#include "crosshatch/comm/data_plane.h"
#include "crosshatch/comm/local/local_hub.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::internal {

/// The control plane of a rank that is a thread.
class LocalControlPlane final : public ControlPlane {
 public:
  /// \param context of this rank; must outlive issued work
  LocalControlPlane(std::shared_ptr<LocalHub> hub, RankContext& context,
                    absl::Duration timeout)
      : hub_(std::move(hub)), context_(context), timeout_(timeout) {}

  absl::StatusOr<std::unique_ptr<ControlGroup>> Join(
      const GroupKey& key, int member, absl::Duration timeout) override;
  absl::Duration timeout() const override { return timeout_; }
  void FailRank(const absl::Status& error) override {
    hub_->FailRank(context_.world_rank(), error);
  }

 private:
  const std::shared_ptr<LocalHub> hub_;
  RankContext& context_;
  const absl::Duration timeout_;
};

/// The data planes of ranks that read one another's memory.
///
/// Each member moves its part of the data: of host memory on the calling
/// thread, of a device in its queue. There the ranks' threads meet when they
/// issue the collective. By events, each queue then waits for the work that the
/// peers' queues hold before the collective, and later work waits for the
/// peers' part of it. So a queue waits only for issued work and cannot stall.
/// Only a rendezvous of threads can, and the wait graph finds that.
class MemoryPlanes final : public DataPlanes {
 public:
  explicit MemoryPlanes(std::shared_ptr<LocalHub> hub) : hub_(std::move(hub)) {}

  const std::string& name() const override { return name_; }
  bool connects_alone() const override { return true; }
  absl::StatusOr<std::unique_ptr<DataPlane>> Connect(
      const GroupKey& key, int member, RankContext& context,
      absl::Duration timeout, Exchange exchange) override;

 private:
  const std::string name_ = "local";
  const std::shared_ptr<LocalHub> hub_;
};

/// Creates `member`'s MemoryPlane for one group.
std::unique_ptr<DataPlane> MakeMemoryPlane(std::shared_ptr<LocalGroup> group,
                                           int member,
                                           const KernelTable& kernels);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_LOCAL_LOCAL_PLANES_H_
