// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/conformance_testutil.h"
#include "crosshatch/comm/on_cuda_testutil.h"
#include "crosshatch/comm/world.h"

namespace crosshatch {
namespace {

/// Two devices, or one for all ranks if their number is odd.
const bool registered = RegisterCommunicatorConformanceTests(
    {.name = "LocalOnCuda",
     .run =
         [](int ranks, absl::FunctionRef<absl::Status(World&)> fn,
            const ConformanceRunOptions& options) {
           return RunLocal(
               ranks, fn,
               {.timeout = options.timeout,
                .backends = OnCuda(ranks, ranks % 2 == 0 ? 2 : 1),
                .test = {.adversarial_seed = options.adversarial_seed}});
         },
     .world_sizes = {1, 3, 4},
     .any_order_of_streams = false,
     .copy = CopyOnCuda});

}  // namespace
}  // namespace crosshatch
