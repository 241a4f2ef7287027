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
            JobOptions options) {
           options.backends = OnCuda(ranks, ranks % 2 == 0 ? 2 : 1);
           return RunLocal(ranks, fn, options);
         },
     .world_sizes = {1, 3, 4},
     .any_order_of_streams = false,
     .copy = CopyOnCuda});

}  // namespace
}  // namespace crosshatch
