// SPDX-License-Identifier: Apache-2.0

/// \file
/// A program for bad_start_test.py, whose ranks have nothing to do.

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "crosshatch/launch/run.h"

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
      argc, argv, [](World&) { return absl::OkStatus(); }, options);
}

}  // namespace
}  // namespace crosshatch

int main(int argc, char** argv) { return crosshatch::Main(argc, argv); }
