// SPDX-License-Identifier: Apache-2.0
//
// bazel run //tests:conformance -- --cases=FILE --out=FILE [--backend=local]
//
// Reads a file of cases, one JSON object a line (case_runner.h), runs each on
// real ranks and writes a file of answers, one line each, in the same order.
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "crosshatch/tests/conformance/case_runner.h"

ABSL_FLAG(std::string, cases, "", "file of cases, one JSON object a line");
ABSL_FLAG(std::string, out, "", "file to write the answers to");
ABSL_FLAG(std::string, backend, "local", "engine to run on: local");

namespace {

// Bazel runs programs in a directory of its own.
std::string FromWhereItWasTyped(const std::string& path) {
  const char* const directory = std::getenv("BUILD_WORKING_DIRECTORY");
  if (directory == nullptr || path.empty() || path[0] == '/') return path;
  return std::string(directory) + "/" + path;
}

int Fail(const std::string& message) {
  std::cerr << "conformance: " << message << "\n";
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "runs conformance cases: --cases=FILE --out=FILE [--backend=local]");
  absl::ParseCommandLine(argc, argv);
  if (absl::GetFlag(FLAGS_backend) != "local") {
    return Fail("unknown --backend=" + absl::GetFlag(FLAGS_backend) +
                "; there is: local");
  }
  const std::string cases_path =
      FromWhereItWasTyped(absl::GetFlag(FLAGS_cases));
  std::ifstream in(cases_path);
  if (!in) return Fail("cannot read --cases=" + cases_path);
  std::vector<std::string> cases;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) cases.push_back(line);
  }
  const std::string out_path = FromWhereItWasTyped(absl::GetFlag(FLAGS_out));
  std::ofstream out(out_path);
  if (!out) return Fail("cannot write --out=" + out_path);
  for (const std::string& answer :
       crosshatch::conformance::RunCasesLocal(cases)) {
    out << answer << "\n";
  }
  out.flush();
  return out ? 0 : Fail("cannot write --out=" + out_path);
}
