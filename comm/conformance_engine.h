// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_CONFORMANCE_ENGINE_H_
#define CROSSHATCH_COMM_CONFORMANCE_ENGINE_H_

/// \file
/// The description of an engine for the conformance suite.

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
  /// The prefix of test names.
  std::string name;
  /// Runs `fn` as `ranks` ranks and returns the result of the job. An engine of
  /// processes runs it as the one rank that the process is.
  std::function<absl::Status(int ranks, absl::FunctionRef<absl::Status(World&)>,
                             const ConformanceRunOptions&)>
      run;
  std::vector<int> world_sizes = {1, 2, 3, 4, 5};

  // Whether ranks run concurrently and data move. Otherwise, as in a dry run,
  // `run` runs one rank after the other, and only conformance_contract.h is
  // tested.
  bool has_peers = true;
  /// Sums add ranks 0..n-1 in order, in float32 for the 16-bit types.
  bool order_fixed_sums = true;
  /// Whether it finds cycles of waiting ranks without a timeout.
  bool exact_stalls = true;
  /// Whether ranks may issue to different streams in different orders.
  /// Otherwise, as on devices, all issue all collectives in one order.
  bool any_order_of_streams = true;
  /// Whether it finds, without a timeout, that ranks wait for one that has
  /// finished.
  bool finds_finished = true;

  /// Copies between host memory and that of the rank's allocator; memcpy if
  /// null. Not called for blocks without memory.
  std::function<void(void* to, const void* from, int64_t bytes)> copy;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_CONFORMANCE_ENGINE_H_
