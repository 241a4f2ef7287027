// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_TIMELINE_H_
#define CROSSHATCH_EXAMPLES_TIMELINE_H_

#include <string>

#include "absl/status/statusor.h"

namespace crosshatch::examples {

struct TimelineOptions {
  int ranks = 2;
  int steps = 3;
  int layers = 4;
};

/// Trains a small Llama with FullyShard on rank threads. Returns a trace in the
/// JSON format of Chrome, which ui.perfetto.dev and chrome://tracing open. It
/// shows when each rank computes, gathers and reduces.
absl::StatusOr<std::string> TraceTraining(const TimelineOptions& options);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_TIMELINE_H_
