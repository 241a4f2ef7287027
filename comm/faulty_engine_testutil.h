// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_FAULTY_ENGINE_TESTUTIL_H_
#define CROSSHATCH_COMM_FAULTY_ENGINE_TESTUTIL_H_

/// \file
/// FaultyEngine: wraps the control plane and the data planes of one rank,
/// counts their operations and injects one fault if requested.

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "crosshatch/comm/control_plane.h"
#include "crosshatch/comm/data_plane.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {

/// A fault in the `index`-th collective or exchange of one group.
struct EngineFault {
  enum class Kind : uint8_t {
    kNone,
    // These happen to a collective.
    kSkip,
    kTwice,
    kBarrierBefore,
    kOtherKind,
    kOtherDType,
    kOtherCount,
    kOtherOp,
    kOtherScale,
    kOtherRoot,
    kOtherLabel,
    /// The rank fails without a report to the others.
    kError,
    /// The engine fails the group, as a watchdog would.
    kFail,
    kPoison,
    /// The rank begins only after the job has failed.
    kNeverComes,
    // These happen to an exchange.
    kSkipExchange,
    kExchangeTwice,
    kErrorOfExchange,
  };
  static constexpr int kNumKinds = 18;
  static bool IsOfExchange(Kind kind) { return kind >= Kind::kSkipExchange; }

  Kind kind = Kind::kNone;
  /// Describe(GroupKey) and the name of its stream.
  std::string group;
  int64_t index = 0;
};

const char* Name(EngineFault::Kind kind);

/// Counts of one group.
struct GroupTraffic {
  std::string group;
  int size = 0;
  int64_t collectives = 0;
  int64_t exchanges = 0;
};

/// Wraps both planes of a World. Each injected error contains "injected".
class FaultyEngine final : public ControlPlane, public DataPlanes {
 public:
  /// \param control, planes, context must outlive this
  FaultyEngine(ControlPlane& control, DataPlanes& planes, RankContext& context,
               EngineFault fault);
  ~FaultyEngine() override;

  absl::StatusOr<std::unique_ptr<ControlGroup>> Join(
      const GroupKey& key, int member, absl::Duration timeout) override;
  absl::Duration timeout() const override { return control_.timeout(); }
  void FailRank(const absl::Status& error) override {
    control_.FailRank(error);
  }

  const std::string& name() const override { return planes_.name(); }
  bool moves_host_memory() const override {
    return planes_.moves_host_memory();
  }
  bool connects_alone() const override { return planes_.connects_alone(); }
  absl::StatusOr<std::unique_ptr<DataPlane>> Connect(
      const GroupKey& key, int member, RankContext& context,
      absl::Duration timeout, Exchange exchange) override;
  absl::Status Split(const std::vector<int>& world_ranks,
                     const std::vector<std::vector<int>>& groups,
                     RankContext& context, absl::Duration timeout,
                     Exchange exchange) override {
    return planes_.Split(world_ranks, groups, context, timeout, exchange);
  }
  void Abort(RankContext& context) override { planes_.Abort(context); }

  /// Returns counts by group, in the order of creation. The streams must be
  /// idle.
  std::vector<GroupTraffic> traffic() const;

 private:
  struct Group;
  class FaultyGroup;
  class FaultyPlane;

  ControlPlane& control_;
  DataPlanes& planes_;
  RankContext& context_;
  const EngineFault fault_;
  mutable std::mutex mutex_;  // Streams connect.
  /// In the order of creation.
  std::vector<std::shared_ptr<Group>> groups_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_FAULTY_ENGINE_TESTUTIL_H_
