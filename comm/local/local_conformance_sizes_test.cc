// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/conformance_testutil.h"
#include "crosshatch/comm/world.h"

namespace crosshatch {
namespace {

// Sizes that share memory in the same way as those of local_conformance_test.
const bool registered = RegisterCommunicatorConformanceTests(
    {.name = "Local", .run = RunLocal, .world_sizes = {1, 2, 5}});

}  // namespace
}  // namespace crosshatch
