// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_FAULTY_ENGINE_TESTUTIL_H_
#define CROSSHATCH_COMM_FAULTY_ENGINE_TESTUTIL_H_

/// \file
/// FaultyEngine: stands around the engine of one rank, counts what goes through
/// it and, if told so, does one thing wrong.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "crosshatch/comm/engine.h"

namespace crosshatch {

/// One mistake of a rank in the `index`-th of its collectives, or exchanges, of
/// one group.
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
    /// It fails without a word to the others.
    kError,
    /// The group is failed by the engine, as a watchdog would.
    kFail,
    kPoison,
    /// It begins only when the job has failed.
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

/// What went through one group.
struct GroupTraffic {
  std::string group;
  int size = 0;
  int64_t collectives = 0;
  int64_t exchanges = 0;
};

/// Every mistake that is an error says "planted".
class FaultyEngine final : public Engine {
 public:
  /// \param engine, context of the rank; outlive this.
  FaultyEngine(Engine& engine, RankContext& context, EngineFault fault);
  ~FaultyEngine() override;

  const std::string& name() const override { return engine_.name(); }
  absl::Status Divide(
      const std::vector<int>& world_ranks,
      const std::vector<std::vector<int>>& groups,
      absl::FunctionRef<absl::StatusOr<std::vector<std::string>>(std::string)>
          exchange) override {
    return engine_.Divide(world_ranks, groups, exchange);
  }
  absl::StatusOr<std::unique_ptr<Transport>> Connect(const GroupKey& key,
                                                     int member) override;
  void FailJob(const absl::Status& error) override { engine_.FailJob(error); }

  /// By group, in the order of their making. The streams are idle.
  std::vector<GroupTraffic> traffic() const;

 private:
  class FaultyTransport;

  Engine& engine_;
  RankContext& context_;
  const EngineFault fault_;
  std::vector<std::shared_ptr<GroupTraffic>> traffic_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_FAULTY_ENGINE_TESTUTIL_H_
