// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_TESTS_ADVERSARIAL_TRAINING_TESTUTIL_H_
#define CROSSHATCH_FSDP_TESTS_ADVERSARIAL_TRAINING_TESTUTIL_H_

/// \file
/// Trains a model of three groups on adversarial streams, with or without an
/// injected fault in the use of streams and leases, and compares bits.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/fsdp/policy.h"
#include "crosshatch/tensor/fault_injector_testutil.h"

namespace crosshatch::fsdp {

/// Number of seeds within which a fault must be detected.
inline constexpr uint64_t kSeeds = 1000;

/// A training run.
struct Scenario {
  std::string name;
  std::vector<MeshAxis> axes;
  FullyShardOptions options;
  int blocks = 2;
  int backwards_per_step = 1;
  /// The part of the reduction that all backwards of a step but the last omit.
  enum class Postponed : uint8_t { kNothing, kAllReduce, kReduction };
  Postponed postponed = Postponed::kNothing;
  /// Whether each block uses nn::Checkpoint.
  bool checkpointed = false;
  /// Whether each step is followed by a step of the first block alone.
  bool steps_of_a_part = false;

  int ranks() const;
};

/// Returns all training runs.
std::vector<Scenario> AllScenarios();
/// Returns the one of that name.
Scenario ScenarioOf(const std::string& name);

/// Trains on one rank, also of a dry run.
absl::Status TrainScenario(World& world, const Scenario& scenario);

struct RankResult {
  std::vector<uint64_t> bits;  ///< Of all losses, then of the shards.
  IssueLog log;
  int64_t overlaps = 0;
  /// The waits and leases of the middle step, where faults are injected, so
  /// that a later step uses its results.
  size_t first_wait = 0, last_wait = 0;
  size_t first_lease = 0, last_lease = 0;
};
using TrainingResult = std::vector<RankResult>;

/// How a fault is detected.
struct Verdict {
  uint64_t seed = 0;       ///< The first with different bits; 0: none.
  bool overlap = false;    ///< Two leases of one memory overlap.
  std::string equivalent;  ///< Why it has no effect; else empty.
};

/// A scenario with its results on streams without delays and the log of the
/// work that it issues.
class Reference {
 public:
  explicit Reference(Scenario scenario);

  const std::string& name() const { return scenario_.name; }
  const RankResult& rank() const { return logged_[0]; }
  const IssueLog& log() const { return logged_[0].log; }

  /// Returns whether training without a fault has the same bits on this seed.
  bool IsSound(uint64_t seed) const;

  /// Injects `fault` on all ranks, as a bug would be. Whether it can have an
  /// effect is determined first and not by chance: from the log of issued work
  /// and, for an omitted wait, from a run in which the work to wait for is
  /// late.
  Verdict Find(Fault fault) const;

  /// Return the selected waits and leases of the step with faults.
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
