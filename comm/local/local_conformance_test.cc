// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/conformance_testutil.h"
#include "crosshatch/comm/world.h"

namespace crosshatch {
namespace {

const bool registered = RegisterCommunicatorConformanceTests(
    {.name = "Local", .run = RunLocal, .world_sizes = {3, 4}});

}  // namespace
}  // namespace crosshatch
