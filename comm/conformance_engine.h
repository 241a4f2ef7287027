// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_CONFORMANCE_ENGINE_H_
#define CROSSHATCH_COMM_CONFORMANCE_ENGINE_H_

/// \file
/// What the conformance suite needs to know of an engine.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "crosshatch/comm/world.h"

namespace crosshatch {

struct ConformanceRunOptions {
  absl::Duration timeout = absl::Minutes(1);
  uint64_t adversarial_seed = 0;
};

struct ConformanceEngine {
  /// Names the tests.
  std::string name;
  /// Runs `fn` as `ranks` ranks and returns the result of the job. An engine of
  /// processes runs it as the one rank that the process is.
  std::function<absl::Status(int ranks, absl::FunctionRef<absl::Status(World&)>,
                             const ConformanceRunOptions&)>
      run;
  std::vector<int> world_sizes = {1, 2, 3, 4, 5};

  // Capabilities.
  /// Ranks run together and data move. Without, as in a dry run, `run` runs
  /// each rank by itself, one after the other, and the suite is what one rank
  /// sees (conformance_contract.h).
  bool has_peers = true;
  /// Sums add ranks 0..n-1 in order, in float32 for the 16-bit types.
  bool order_fixed_sums = true;
  /// Finds by itself, without a timeout, that ranks wait in a circle.
  bool exact_stalls = true;
  /// Ranks may issue to different streams in different orders. Without, all
  /// issue all collectives in one order, as on devices.
  bool any_order_of_streams = true;
  /// Finds so that ranks wait for one that has finished.
  bool finds_finished = true;

  /// Copies between the host's memory and that of the rank's allocator; memcpy
  /// if left out. Not called where a block has no memory.
  std::function<void(void* to, const void* from, int64_t bytes)> copy;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_CONFORMANCE_ENGINE_H_
