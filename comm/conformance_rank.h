// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_CONFORMANCE_RANK_H_
#define CROSSHATCH_COMM_CONFORMANCE_RANK_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "crosshatch/comm/conformance_case.h"
#include "crosshatch/comm/world.h"

namespace crosshatch::internal {

/// One rank of a conformance test with a group of all ranks.
class ConformanceRank {
 public:
  static absl::StatusOr<ConformanceRank> Create(const ConformanceEngine& engine,
                                                World& world) {
    auto comm = world.Group("all", world.AllRanks(), "comm");
    if (!comm.ok()) return comm.status();
    return ConformanceRank(engine, world, *std::move(comm));
  }

  Communicator& comm() { return *comm_; }
  Stream& stream() { return world_->context().SideStream("comm"); }

  absl::Status Run(const CollectiveCase& c) {
    return RunCase(*engine_, *world_, *comm_, stream(), c);
  }

 private:
  ConformanceRank(const ConformanceEngine& engine, World& world,
                  std::shared_ptr<Communicator> comm)
      : engine_(&engine), world_(&world), comm_(std::move(comm)) {}

  const ConformanceEngine* engine_;
  World* world_;
  std::shared_ptr<Communicator> comm_;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_CONFORMANCE_RANK_H_
