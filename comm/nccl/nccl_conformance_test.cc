// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "crosshatch/comm/conformance_testutil.h"
#include "crosshatch/comm/nccl/run_nccl_testutil.h"
#include "crosshatch/comm/on_cuda_testutil.h"

namespace crosshatch {
namespace {

ConformanceEngine By(const std::string& name, const NcclOptions& nccl,
                     std::vector<int> world_sizes) {
  return {.name = name,
          .run =
              [=](int ranks, absl::FunctionRef<absl::Status(World&)> fn,
                  const JobOptions& options) {
                return RunNccl(ranks, fn, {.nccl = nccl, .job = options});
              },
          .world_sizes = std::move(world_sizes),
          .order_fixed_sums = nccl.deterministic,
          .exact_stalls = false,
          .any_order_of_streams = false,
          .copy = CopyOnCuda};
}

// Sends and receives with ordered sums, and NCCL's own collectives if possible.
const bool registered =
    RegisterCommunicatorConformanceTests(
        By("NcclInOrder", {.deterministic = true}, {1, 3})) &&
    RegisterCommunicatorConformanceTests(
        By("NcclCollectives", {.least_collective_bytes = 0}, {4}));

}  // namespace
}  // namespace crosshatch
