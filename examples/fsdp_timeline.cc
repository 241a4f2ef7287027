// SPDX-License-Identifier: Apache-2.0

/// \file
/// Writes a trace of a few training steps under FullyShard for ui.perfetto.dev:
/// gathers and reductions overlap with compute.

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/examples/timeline.h"

ABSL_FLAG(std::string, out, "fsdp_timeline.json", "where to write the trace");
ABSL_FLAG(int, ranks, 2, "number of ranks (threads)");
ABSL_FLAG(int, steps, 3, "number of training steps");
ABSL_FLAG(int, layers, 4, "number of blocks of the model, each an FSDP group");

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Writes a trace of training under FullyShard.");
  absl::ParseCommandLine(argc, argv);
  const absl::StatusOr<std::string> trace = crosshatch::examples::TraceTraining(
      {.ranks = absl::GetFlag(FLAGS_ranks),
       .steps = absl::GetFlag(FLAGS_steps),
       .layers = absl::GetFlag(FLAGS_layers)});
  if (!trace.ok()) {
    std::fprintf(stderr, "%s\n", std::string(trace.status().message()).c_str());
    return 1;
  }
  std::string path = absl::GetFlag(FLAGS_out);
  // `bazel run` starts programs in another directory than that of the caller.
  const char* const called_from = std::getenv("BUILD_WORKING_DIRECTORY");
  if (path.empty()) {
    std::fprintf(stderr, "--out= names nothing\n");
    return 1;
  }
  if (called_from != nullptr && path[0] != '/') {
    path = absl::StrCat(called_from, "/", path);
  }
  std::ofstream file(path);
  file << *trace;
  file.close();
  if (!file) {
    std::fprintf(stderr, "cannot write %s\n", path.c_str());
    return 1;
  }
  std::printf("%s: open it with ui.perfetto.dev\n", path.c_str());
  return 0;
}
