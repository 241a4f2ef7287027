// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_CONFORMANCE_TESTUTIL_H_
#define CROSSHATCH_COMM_CONFORMANCE_TESTUTIL_H_

/// \file
/// The tests that every engine and every data plane passes, in two parts. A
/// test file is a registration:
///
///     const bool registered = RegisterCommunicatorConformanceTests({
///         .name = "Local",
///         .run = [](int ranks, auto fn, const JobOptions& options) {
///           return RunLocal(ranks, fn, options);
///         }});
///
/// EngineOfPlanes (data_plane_testutil.h) returns the engine of a data plane.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "crosshatch/comm/world.h"

namespace crosshatch {

struct ConformanceEngine {
  /// The prefix of test names.
  std::string name;
  /// Runs `fn` as `ranks` ranks and returns the result of the job. An engine of
  /// processes runs it as the one rank that the process is.
  std::function<absl::Status(int ranks, absl::FunctionRef<absl::Status(World&)>,
                             const JobOptions&)>
      run;
  std::vector<int> world_sizes = {1, 2, 3, 4, 5};

  /// Whether sums add ranks 0..n-1 in order, in float32 for the 16-bit types.
  bool order_fixed_sums = true;
  /// Whether cycles of waiting ranks are found without a timeout.
  bool exact_stalls = true;
  /// Whether ranks may issue to different streams in different orders.
  /// Otherwise, as on devices, all issue all collectives in one order.
  bool any_order_of_streams = true;

  /// Copies between host memory and that of the rank's allocator; memcpy if
  /// null. Not called for blocks without memory.
  std::function<void(void* to, const void* from, int64_t bytes)> copy;
};

/// \name Registration
/// Each function returns true, so that a static variable's initializer can call
/// it.
/// @{

/// Registers tests of agreement and failures: refused, counted and logged
/// collectives, mismatches, late and missing ranks, errors, exchanges.
bool RegisterAgreementConformanceTests(ConformanceEngine engine);

/// Registers tests of data movement: every kind, dtype, reduction, layout and
/// count, groups and streams.
bool RegisterMovementConformanceTests(ConformanceEngine engine);

/// Registers both parts.
bool RegisterCommunicatorConformanceTests(const ConformanceEngine& engine);

/// Registers the tests of agreement that concern one rank, for an engine whose
/// ranks have no peers: `run` runs one rank after the other.
bool RegisterDryRunConformanceTests(ConformanceEngine engine);
/// @}

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_CONFORMANCE_TESTUTIL_H_
