// SPDX-License-Identifier: Apache-2.0

/// \file
/// A program for bad_start_test.py, whose ranks have nothing to do, or fail.

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/launch/run.h"
#include "crosshatch/launch/stop.h"

namespace crosshatch {
namespace {

int Main(int argc, char** argv) {
  RunOptions options;
  if (const char* ranks = std::getenv("PROBE_RANKS"); ranks != nullptr) {
    options.ranks = std::atoi(ranks);
  }
  options.prepare = [](Backend, int rank) -> absl::Status {
    const char* bad = std::getenv("PROBE_BAD_RANK");
    if (bad == nullptr || std::atoi(bad) != rank) return absl::OkStatus();
    return absl::NotFoundError("the data are not here");
  };
  return Run(
      argc, argv,
      [](World& world) -> absl::Status {
        const char* failing = std::getenv("PROBE_FAILING_RANK");
        if (failing == nullptr) return absl::OkStatus();
        if (std::atoi(failing) == world.rank()) {
          return absl::InternalError("out of luck");
        }
        // The others hear of it in the middle of what they do together.
        while (true) {
          CH_RETURN_IF_ERROR(StopRequested(world).status());
        }
      },
      options);
}

}  // namespace
}  // namespace crosshatch

int main(int argc, char** argv) { return crosshatch::Main(argc, argv); }
