// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/adversarial_delays.h"

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace crosshatch {
namespace {

void Sleep(uint64_t microseconds) {
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

}  // namespace

AdversarialDelays::AdversarialDelays(uint64_t seed, int rank,
                                     std::string_view queue)
    : state_(seed) {
  for (char c : queue) Mix(static_cast<uint64_t>(c));
  Mix(static_cast<uint64_t>(rank));
}

void AdversarialDelays::BeforeTask() {
  if (tasks_left_ == 0) BeginPhase();
  --tasks_left_;
  if (phase_ == Phase::kFast) return;
  const uint64_t choice = Below(8);
  if (phase_ == Phase::kJitter && choice >= 2) return;
  if (choice < 4) {
    std::this_thread::yield();
  } else {
    Sleep(Below(100));
  }
}

void AdversarialDelays::BeginPhase() {
  switch (Below(4)) {
    case 0:
      phase_ = Phase::kLate;
      tasks_left_ = 1 + Below(8);
      Sleep(300 + Below(1000));
      break;
    case 1:
      phase_ = Phase::kJitter;
      tasks_left_ = 1 + Below(32);
      break;
    default:
      phase_ = Phase::kFast;
      tasks_left_ = 1 + Below(64);
      break;
  }
}

// SplitMix64.
uint64_t AdversarialDelays::Next() {
  uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

absl::StatusOr<uint64_t> AdversarialSeedOfEnvironment() {
  const char* const text = std::getenv("CROSSHATCH_ADVERSARIAL_SEED");
  uint64_t seed = 0;
  if (text == nullptr || *text == '\0') return seed;
  if (!absl::SimpleAtoi(text, &seed)) {
    return absl::InvalidArgumentError(
        absl::StrCat("CROSSHATCH_ADVERSARIAL_SEED=", text,
                     " in the environment: it takes an integer from 0, which "
                     "stands for none, to 18446744073709551615"));
  }
  return seed;
}

}  // namespace crosshatch
