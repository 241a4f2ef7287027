// SPDX-License-Identifier: Apache-2.0
//
// Runs the conformance suite on the engine of processes, with threads as
// processes.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/comm/conformance_testutil.h"
#include "crosshatch/comm/mpi/run_loopback_testutil.h"
#include "crosshatch/comm/mpi/run_process.h"
#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

ConformanceEngine EngineOn(const std::string& name,
                           const LoopbackOptions& wire_options,
                           int64_t max_message_bytes,
                           std::vector<int> world_sizes) {
  return {.name = name,
          .run =
              [=](int ranks, absl::FunctionRef<absl::Status(World&)> fn,
                  JobOptions options) {
                options.test.max_message_bytes = max_message_bytes;
                LoopbackOptions with_size = wire_options;
                with_size.size = ranks;
                LoopbackWire wire(with_size);
                const auto results = RunLoopback(wire, ranks, fn, [&](int) {
                  return MpiOptions{.job = options};
                });
                for (const ProcessResult& result : results) {
                  EXPECT_TRUE(result.ended_together);
                  // All ranks of a job have one result.
                  EXPECT_EQ(result.status, results[0].status);
                }
                return results[0].status;
              },
          .world_sizes = std::move(world_sizes),
          .exact_stalls = false};
}

const bool registered =
    RegisterCommunicatorConformanceTests(
        EngineOn("Loopback", {}, int64_t{1} << 30, {1, 3, 5})) &&
    // Data above half a kilobyte need many late messages, and the last rank
    // receives no notifications.
    RegisterCommunicatorConformanceTests(
        EngineOn("LateLoopback", {.delay_seed = 1, .num_near = 2}, 512, {3}));

}  // namespace
}  // namespace crosshatch::internal
