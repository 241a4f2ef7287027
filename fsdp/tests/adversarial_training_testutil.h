// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_TESTS_ADVERSARIAL_TRAINING_TESTUTIL_H_
#define CROSSHATCH_FSDP_TESTS_ADVERSARIAL_TRAINING_TESTUTIL_H_

/// \file
/// Trains a model of three groups on adversarial streams, with or without a
/// mistake planted in how streams and leases are used, and compares bits.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "crosshatch/fsdp/policy.h"
#include "crosshatch/tensor/fault_planter_testutil.h"

namespace crosshatch::fsdp {

/// Seeds that a fault has to show in.
inline constexpr uint64_t kSeeds = 1000;

struct Scenario {
  std::string name;
  std::vector<MeshAxis> axes;
  FullyShardOptions options;
  int blocks = 2;
  int backwards_per_step = 1;
  /// What all backwards of a step but the last leave out.
  enum class Postponed : uint8_t { kNothing, kAllReduce, kReduction };
  Postponed postponed = Postponed::kNothing;
  /// Each block under nn::Checkpoint.
  bool checkpointed = false;
  /// After each step one of the first block alone.
  bool steps_of_a_part = false;

  int ranks() const;
};

/// Two ranks, default options.
Scenario PlainScenario();
/// Casts of shards and of reduced gradients, sums over replicas, gradients that
/// accumulate sharded.
Scenario HybridScenario();
/// Gradients that accumulate before they are summed over replicas.
Scenario PartialScenario();
/// Parameters that are gathered from two of four ranks in backward, and
/// gradients that accumulate unsharded.
Scenario PostForwardScenario();
/// It is HybridScenario with shards, gradients and optimizer in host memory.
Scenario OffloadScenario();
/// Two ranks, blocks that run again in backward.
Scenario CheckpointScenario();
/// Two ranks, a block that is trained by itself between steps.
Scenario PartScenario();
/// All of these.
std::vector<Scenario> AllScenarios();

/// What a rank did.
struct RankResult {
  std::vector<uint64_t> bits;  ///< Of all losses, then of its shards.
  IssueLog log;
  int64_t overlaps = 0;
  /// The waits and leases of the step in the middle, where faults are planted:
  /// what it leaves behind is used by another.
  size_t first_wait = 0, last_wait = 0;
  size_t first_lease = 0, last_lease = 0;
};
using TrainingResult = std::vector<RankResult>;

/// How a fault shows.
struct Verdict {
  uint64_t seed = 0;       ///< The first that gives other bits; 0: none.
  bool overlap = false;    ///< Two leases of one memory at one time.
  std::string equivalent;  ///< Why it changes nothing; empty if it does.
};

/// A scenario with what it gives on streams that nobody delays, and the log of
/// what it issues.
class Reference {
 public:
  explicit Reference(Scenario scenario);

  const std::string& name() const { return scenario_.name; }
  /// Rank 0's.
  const RankResult& rank() const { return logged_[0]; }
  const IssueLog& log() const { return logged_[0].log; }

  /// Whether training without a fault gives the same bits on this seed.
  bool IsSound(uint64_t seed) const;

  /// Plants `fault` on all ranks, as a bug would be. Whether it can matter is
  /// known before: from the log of what is issued, which is no matter of
  /// chance, and for a wait that is left out from a run in which the work that
  /// it waits for is late.
  Verdict Find(Fault fault) const;

  /// Those of the planted step.
  std::vector<int64_t> Waits(
      const std::function<bool(const LoggedWait&)>& wanted) const;
  std::vector<int64_t> Leases(
      const std::function<bool(const LoggedLease&)>& wanted) const;

 private:
  const Scenario scenario_;
  const TrainingResult calm_;
  const TrainingResult logged_;
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_TESTS_ADVERSARIAL_TRAINING_TESTUTIL_H_
