// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/stop.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"

namespace crosshatch {
namespace {

// A signal is the process's, and its handler can reach nothing else.
std::atomic<bool> stop_signalled = false;
std::atomic<bool> stop_agreed = false;

void OnStopSignal(int signal) {
  if (!stop_signalled.exchange(true)) return;
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

absl::StatusOr<bool> StopRequested(World& world) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  CH_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> all,
                      world.Group("stop", std::move(ranks),
                                  world.context().compute_stream().name()));
  CH_ASSIGN_OR_RETURN(
      const std::vector<std::string> said,
      all->Exchange(stop_signalled.load() ? "stop" : "", "stop"));
  const bool stops = std::any_of(said.begin(), said.end(),
                                 [](const auto& s) { return !s.empty(); });
  if (stops) stop_agreed = true;
  return stops;
}

StopSignals::StopSignals() {
  stop_signalled = false;
  stop_agreed = false;
  struct sigaction action = {};
  action.sa_handler = OnStopSignal;
  // Reads and writes that a signal meets go on.
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGTERM, &action, &term_before_);
  sigaction(SIGINT, &action, &int_before_);
}

StopSignals::~StopSignals() {
  sigaction(SIGTERM, &term_before_, nullptr);
  sigaction(SIGINT, &int_before_, nullptr);
}

bool StopSignals::was_agreed() const { return stop_agreed; }

}  // namespace crosshatch
