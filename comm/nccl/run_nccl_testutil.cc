// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/nccl/run_nccl_testutil.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "crosshatch/comm/mpi/loopback_link_testutil.h"
#include "crosshatch/comm/mpi/run_loopback_testutil.h"
#include "crosshatch/comm/nccl/nccl_data_planes.h"
#include "crosshatch/comm/on_cuda_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

constexpr int kMostRanks = 8;

}  // namespace

absl::Status RunNccl(int ranks, absl::FunctionRef<absl::Status(World&)> fn,
                     const RunNcclOptions& options) {
  static const int devices_there = HaveCudaDevices(kMostRanks);
  internal::LoopbackWire wire({.size = ranks});
  JobOptions job = options.job;
  job.backends =
      OnCuda(ranks, options.devices == 0 ? std::min(ranks, devices_there)
                                         : options.devices);
  std::vector<std::unique_ptr<DataPlanes>> planes;
  for (int rank = 0; rank < ranks; ++rank) {
    planes.push_back(MakeNcclDataPlanes(options.nccl));
  }
  const auto results =
      internal::RunLoopback(wire, ranks, fn, [&](int rank) -> MpiOptions {
        const auto index = static_cast<size_t>(rank);
        return {.job = job,
                .planes = planes[index].get(),
                .failure_channel = options.channels.empty()
                                       ? nullptr
                                       : options.channels[index]};
      });
  for (const internal::ProcessResult& result : results) {
    EXPECT_TRUE(result.ended_together);
    EXPECT_EQ(result.status, results[0].status);
  }
  return results[0].status;
}

}  // namespace crosshatch
