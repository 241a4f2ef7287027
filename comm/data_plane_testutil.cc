// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/data_plane_testutil.h"

#include <utility>

#include "crosshatch/comm/mpi/loopback_link_testutil.h"
#include "crosshatch/comm/mpi/run_loopback_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch {

ConformanceEngine EngineOfPlanes(
    std::string name,
    std::function<std::vector<std::unique_ptr<DataPlanes>>(int ranks)> make,
    std::vector<int> world_sizes) {
  return {
      .name = std::move(name),
      .run =
          [make = std::move(make)](int ranks,
                                   absl::FunctionRef<absl::Status(World&)> fn,
                                   const JobOptions& options) {
            internal::LoopbackWire wire({.size = ranks});
            const auto planes = make(ranks);
            const auto results = internal::RunLoopback(
                wire, ranks, fn, [&](int rank) -> MpiOptions {
                  return {.job = options,
                          .planes = planes[static_cast<size_t>(rank)].get()};
                });
            for (const internal::ProcessResult& result : results) {
              EXPECT_TRUE(result.ended_together);
              EXPECT_EQ(result.status, results[0].status);
            }
            return results[0].status;
          },
      .world_sizes = std::move(world_sizes),
      .exact_stalls = false};
}

}  // namespace crosshatch
