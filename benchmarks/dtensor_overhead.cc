// SPDX-License-Identifier: Apache-2.0
//
// What a distributed tensor adds to the time of an op: adds and matmuls of 8x8,
// on plain tensors and on distributed ones that need no communication, and the
// same of PyTorch's where a Python has it.
//
// Rounds of the two take turns, and the least time of many rounds counts: what
// else a machine does only ever adds to it.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <sstream>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/matmul.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/rank_context.h"

ABSL_FLAG(std::string, python, "",
          "a Python interpreter that has PyTorch; by default that of the "
          "environment variable CROSSHATCH_PYTHON, else python3");
ABSL_FLAG(int, rounds, 500, "rounds of 1000 calls of each op");

namespace crosshatch {
namespace {

using BinaryFunction = Tensor (*)(const Tensor&, const Tensor&);

Tensor AddOf(const Tensor& a, const Tensor& b) { return Add(a, b); }
Tensor MatMulOf(const Tensor& a, const Tensor& b) { return MatMul(a, b); }

constexpr int kCalls = 1000;

// Microseconds of a call.
double Time(BinaryFunction run, const Tensor& a, const Tensor& b) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) run(a, b);
  const std::chrono::duration<double, std::micro> time =
      std::chrono::steady_clock::now() - start;
  return time.count() / kCalls;
}

void PrintLine(const std::string& op, double plain, double distributed) {
  std::printf("%-8s %8.3f us %12.3f us %8.3f us %7.2f x\n", op.c_str(), plain,
              distributed, distributed - plain, distributed / plain);
}

// As the one rank of a world.
absl::Status TimeHere() {
  return RunLocal(1, [](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                        InitDeviceMesh(world, {{"tp", 1}}));
    const NoGrad no_grad;
    const Layout layout = Layout::Replicated(mesh.layout(), 2);
    const Tensor a = Full({8, 8}, 1);
    const Tensor b = Full({8, 8}, 2);
    const Tensor spread_a = DistributeTensor(a, mesh, layout);
    const Tensor spread_b = DistributeTensor(b, mesh, layout);
    const struct {
      const char* name;
      BinaryFunction run;
    } ops[] = {{"add", AddOf}, {"matmul", MatMulOf}};
    for (const auto& op : ops) {
      double plain = std::numeric_limits<double>::max();
      double distributed = plain;
      for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
        plain = std::min(plain, Time(op.run, a, b));
        distributed = std::min(distributed, Time(op.run, spread_a, spread_b));
      }
      PrintLine(op.name, plain, distributed);
    }
    return absl::OkStatus();
  });
}

// The interpreter to try.
std::string Python() {
  if (!absl::GetFlag(FLAGS_python).empty()) return absl::GetFlag(FLAGS_python);
  const char* const named = std::getenv("CROSSHATCH_PYTHON");
  return named != nullptr && *named != '\0' ? named : "python3";
}

// What the script beside this file prints; empty where that Python has no
// PyTorch, or is none.
std::string TimePyTorch() {
  const std::string command =
      "\"" + Python() + "\" benchmarks/dtensor_overhead.py 2>/dev/null";
  std::string text;
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return text;
  char buffer[256];
  while (std::fgets(buffer, sizeof(buffer), pipe) != nullptr) text += buffer;
  return pclose(pipe) == 0 ? text : std::string();
}

void PrintPyTorch() {
  std::istringstream lines(TimePyTorch());
  std::string version;
  if (!std::getline(lines, version)) {
    std::printf(
        "%s has no PyTorch to compare with; --python=PATH names one "
        "that has\n",
        Python().c_str());
    return;
  }
  std::printf("%s\n", version.c_str());
  std::string op;
  double plain = 0;
  double distributed = 0;
  while (lines >> op >> plain >> distributed) {
    PrintLine(op, plain, distributed);
  }
}

}  // namespace
}  // namespace crosshatch

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "times 8x8 ops on plain and on distributed tensors: "
      "[--rounds=N] [--python=PATH]");
  absl::ParseCommandLine(argc, argv);
  std::printf("%-8s %11s %15s %11s %9s\n", "8x8", "plain", "distributed",
              "added", "ratio");
  std::printf("Crosshatch\n");
  const absl::Status status = crosshatch::TimeHere();
  if (!status.ok()) {
    std::fprintf(stderr, "dtensor_overhead: %s\n", status.ToString().c_str());
    return 1;
  }
  crosshatch::PrintPyTorch();
  return 0;
}
