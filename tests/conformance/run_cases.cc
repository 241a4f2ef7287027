// SPDX-License-Identifier: Apache-2.0
//
// bazel run //tests:conformance -- --cases=FILE --out=FILE [--engine=auto]
//
// Reads a file of cases, one JSON object per line (case_runner.h), runs each on
// real ranks and writes the answers in the same order. Ranks are threads, or
// the processes of mpirun and other launchers.
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/launch/launch_flags.h"
#include "crosshatch/launch/run.h"
#include "crosshatch/tests/conformance/case_runner.h"

ABSL_FLAG(std::string, cases, "", "file of cases, one JSON object a line");
ABSL_FLAG(std::string, out, "", "file to write the answers to");

namespace {

// Resolves a path relative to the user's directory, because Bazel runs programs
// in another one.
std::string FromWhereItWasTyped(const std::string& path) {
  const char* const directory = std::getenv("BUILD_WORKING_DIRECTORY");
  if (directory == nullptr || path.empty() || path[0] == '/') return path;
  return std::string(directory) + "/" + path;
}

std::vector<std::string> ReadCases(const std::string& path) {
  std::ifstream in(path);
  std::vector<std::string> cases;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) cases.push_back(line);
  }
  return cases;
}

absl::Status WriteAnswers(const std::string& path,
                          const std::vector<std::string>& answers) {
  std::ofstream out(path);
  for (const std::string& answer : answers) out << answer << "\n";
  out.flush();
  if (out) return absl::OkStatus();
  return absl::InternalError("cannot write --out=" + path);
}

}  // namespace

int main(int argc, char** argv) {
  namespace ch = crosshatch;
  absl::SetProgramUsageMessage(
      "runs conformance cases: --cases=FILE --out=FILE");
  absl::Status flags = ch::ParseFlags(argc, argv, "conformance/run_cases.cc");
  const std::string path = FromWhereItWasTyped(absl::GetFlag(FLAGS_cases));
  const std::string out = FromWhereItWasTyped(absl::GetFlag(FLAGS_out));
  const std::vector<std::string> cases = ReadCases(path);
  ch::RunOptions options = {.local_ranks = ch::conformance::RanksOf(cases)};
  if (flags.ok()) flags = ch::ReadLaunchFlags(options);
  options.prepare = [&](ch::EngineKind, int) -> absl::Status {
    CH_RETURN_IF_ERROR(flags);
    if (std::ifstream(path)) return absl::OkStatus();
    return absl::NotFoundError("cannot read --cases=" + path);
  };
  return ch::Run(
      [&](ch::World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(const std::vector<std::string> answers,
                            ch::conformance::RunCases(world, cases));
        return world.rank() == 0 ? WriteAnswers(out, answers)
                                 : absl::OkStatus();
      },
      options);
}
