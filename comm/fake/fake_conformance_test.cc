// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/conformance_testutil.h"
#include "crosshatch/comm/world.h"

namespace crosshatch {
namespace {

/// Runs every rank, one after the other.
absl::Status RunEachRank(int ranks, absl::FunctionRef<absl::Status(World&)> fn,
                         const JobOptions&) {
  for (int rank = 0; rank < ranks; ++rank) {
    CH_RETURN_IF_ERROR(RunFake({.world_size = ranks, .rank = rank}, fn));
  }
  return absl::OkStatus();
}

const bool registered =
    RegisterDryRunConformanceTests({.name = "Fake", .run = RunEachRank});

}  // namespace
}  // namespace crosshatch
