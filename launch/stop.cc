// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/stop.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/all_ranks.h"

namespace crosshatch {
namespace {

// Global, because a signal handler can only access globals.
std::atomic<bool> stop_signalled = false;
std::atomic<bool> stop_agreed = false;

std::atomic<int64_t> stop_signalled_at_ms = 0;

/// Signals within this time are one stop: a terminal and a launcher may both
/// send it. A later one ends the process.
constexpr int64_t kOneStopMs = 1000;

/// Async-signal-safe.
int64_t NowMs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
}

void OnStopSignal(int signal) {
  // One atomic decides, because two threads may each handle a signal.
  const int64_t now = std::max<int64_t>(NowMs(), 1);
  int64_t first = 0;
  if (stop_signalled_at_ms.compare_exchange_strong(first, now)) {
    stop_signalled = true;
    return;
  }
  if (now - first < kOneStopMs) return;
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

absl::StatusOr<bool> StopRequested(World& world) {
  CH_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> all, AllRanks(world));
  CH_ASSIGN_OR_RETURN(
      const std::vector<std::string> signals,
      all->Exchange(stop_signalled.load() ? "stop" : "", "stop"));
  const bool stops = std::any_of(signals.begin(), signals.end(),
                                 [](const auto& s) { return !s.empty(); });
  if (stops) stop_agreed = true;
  return stops;
}

StopSignals::StopSignals() {
  stop_signalled = false;
  stop_signalled_at_ms = 0;
  stop_agreed = false;
  struct sigaction action = {};
  action.sa_handler = OnStopSignal;
  // Interrupted reads and writes continue.
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaddset(&action.sa_mask, SIGTERM);
  sigaddset(&action.sa_mask, SIGINT);
  sigaction(SIGTERM, &action, &term_before_);
  sigaction(SIGINT, &action, &int_before_);
}

StopSignals::~StopSignals() {
  sigaction(SIGTERM, &term_before_, nullptr);
  sigaction(SIGINT, &int_before_, nullptr);
}

bool StopSignals::was_agreed() const { return stop_agreed; }

}  // namespace crosshatch
