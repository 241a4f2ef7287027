// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_ADVERSARIAL_DELAYS_H_
#define CROSSHATCH_BASE_ADVERSARIAL_DELAYS_H_

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace crosshatch {

/// Delays the tasks of a queue to expose missing waits. A queue goes through
/// phases: full speed, some delays, and late. A late queue lets others run far
/// ahead.
/// \threadsafety the queue's thread only.
class AdversarialDelays {
 public:
  /// The delays are a function of the seed, the rank and the queue's name.
  AdversarialDelays(uint64_t seed, int rank, std::string_view queue);

  /// Blocks the calling thread for up to about a millisecond.
  void BeforeTask();

 private:
  enum class Phase { kFast, kJitter, kLate };

  void BeginPhase();
  uint64_t Next();
  void Mix(uint64_t value) { state_ = Next() ^ value; }
  uint64_t Below(uint64_t n) { return Next() % n; }

  uint64_t state_;
  Phase phase_ = Phase::kFast;
  uint64_t tasks_left_ = 0;
};

/// Returns the seed of adversarial streams (stream.h) in the environment
/// variable CROSSHATCH_ADVERSARIAL_SEED; 0, for none, if it is not set or
/// empty.
/// \error kInvalidArgument if it is not a number. Runs check it before any rank
///     starts.
absl::StatusOr<uint64_t> AdversarialSeedOfEnvironment();

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_ADVERSARIAL_DELAYS_H_
