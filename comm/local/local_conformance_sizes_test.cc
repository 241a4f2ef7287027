// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/conformance_testutil.h"
#include "crosshatch/comm/world.h"

namespace crosshatch {
namespace {

// Sizes that share memory in the same way as those of local_conformance_test.
const bool registered = RegisterCommunicatorConformanceTests(
    {.name = "Local",
     .run =
         [](int ranks, absl::FunctionRef<absl::Status(World&)> fn,
            const ConformanceRunOptions& options) {
           return RunLocal(
               ranks, fn,
               {.timeout = options.timeout,
                .test = {.adversarial_seed = options.adversarial_seed}});
         },
     .world_sizes = {1, 2, 5}});

}  // namespace
}  // namespace crosshatch
