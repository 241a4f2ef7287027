// SPDX-License-Identifier: Apache-2.0
//
// The overhead of distributed tensors per op: adds and matmuls of 8x8 on plain
// tensors, on distributed ones that need no communication, and with PyTorch if
// the Python has it.
//
// Rounds of plain and distributed tensors alternate, and the minimum over many
// rounds counts, because other load only adds time.
//
// With --against=PROGRAM, another build of this benchmark, runs of the two
// builds alternate. For each pair, prints the other's time divided by this
// one's.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
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
ABSL_FLAG(
    std::string, against, "",
    "another build of this program, which runs alternately with this one");
ABSL_FLAG(int, pairs, 6, "with --against: runs of each build");

namespace crosshatch {
namespace {

using BinaryFunction = Tensor (*)(const Tensor&, const Tensor&);

Tensor AddOf(const Tensor& a, const Tensor& b) { return Add(a, b); }
Tensor MatMulOf(const Tensor& a, const Tensor& b) { return MatMul(a, b); }

constexpr int kCalls = 1000;

// Returns the microseconds per call.
double Time(BinaryFunction run, const Tensor& a, const Tensor& b) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) run(a, b);
  const std::chrono::duration<double, std::micro> time =
      std::chrono::steady_clock::now() - start;
  return time.count() / kCalls;
}

// Microseconds per call of an op.
struct OpTime {
  std::string op;
  double plain = 0;
  double distributed = 0;
};

void PrintLine(const OpTime& time) {
  std::printf("%-8s %8.3f us %12.3f us %8.3f us %7.2f x\n", time.op.c_str(),
              time.plain, time.distributed, time.distributed - time.plain,
              time.distributed / time.plain);
}

absl::Status TimeHere(std::vector<OpTime>& times) {
  return RunLocal(1, [&](World& world) -> absl::Status {
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
      times.push_back({op.name, plain, distributed});
    }
    return absl::OkStatus();
  });
}

std::string OutputOf(const std::string& command) {
  std::string text;
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return text;
  char buffer[256];
  while (std::fgets(buffer, sizeof(buffer), pipe) != nullptr) text += buffer;
  return pclose(pipe) == 0 ? text : std::string();
}

// Returns the results of another build of this program.
absl::StatusOr<std::vector<OpTime>> TimeOther(const std::string& program) {
  const std::string command = absl::StrCat(
      "\"", program,
      "\" --python=/bin/false --rounds=", absl::GetFlag(FLAGS_rounds));
  std::istringstream lines(OutputOf(command));
  std::vector<OpTime> times;
  for (std::string line; std::getline(lines, line);) {
    OpTime time;
    std::string unit;
    if (std::istringstream(line) >> time.op >> time.plain >> unit >>
        time.distributed) {
      times.push_back(std::move(time));
    }
  }
  if (times.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--against=", program, ": it is no dtensor_overhead, or it failed"));
  }
  return times;
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Prints for each pair how many times as fast as `program` this build is.
absl::Status Compare(const std::string& program) {
  std::map<std::string, std::vector<double>> ratios;
  const auto add = [&](const std::string& name, double other, double here) {
    ratios[name].push_back(other / here);
    std::printf("%-20s other %8.3f us, this %8.3f us, ratio %.3f\n",
                name.c_str(), other, here, other / here);
  };
  for (int pair = 0; pair < absl::GetFlag(FLAGS_pairs); ++pair) {
    std::vector<OpTime> here;
    if (pair % 2 == 0) CH_RETURN_IF_ERROR(TimeHere(here));
    CH_ASSIGN_OR_RETURN(const std::vector<OpTime> other, TimeOther(program));
    if (pair % 2 == 1) CH_RETURN_IF_ERROR(TimeHere(here));
    for (const OpTime& a : other) {
      for (const OpTime& b : here) {
        if (a.op != b.op) continue;
        add(a.op, a.plain, b.plain);
        add(a.op + " distributed", a.distributed, b.distributed);
      }
    }
  }
  for (const auto& [name, of_pairs] : ratios) {
    std::printf("%-20s median ratio %.3f\n", name.c_str(), Median(of_pairs));
  }
  return absl::OkStatus();
}

std::string Python() {
  if (!absl::GetFlag(FLAGS_python).empty()) return absl::GetFlag(FLAGS_python);
  const char* const named = std::getenv("CROSSHATCH_PYTHON");
  return named != nullptr && *named != '\0' ? named : "python3";
}

// Prints the results of the script in this directory if that Python has
// PyTorch.
void PrintPyTorch() {
  std::istringstream lines(OutputOf(
      "\"" + Python() + "\" benchmarks/dtensor_overhead.py 2>/dev/null"));
  std::string version;
  if (!std::getline(lines, version)) {
    std::printf(
        "%s has no PyTorch to compare with; --python=PATH names one "
        "that has\n",
        Python().c_str());
    return;
  }
  std::printf("%s\n", version.c_str());
  OpTime time;
  while (lines >> time.op >> time.plain >> time.distributed) PrintLine(time);
}

absl::Status Run() {
  const std::string against = absl::GetFlag(FLAGS_against);
  if (!against.empty()) return Compare(against);
  std::vector<OpTime> times;
  CH_RETURN_IF_ERROR(TimeHere(times));
  std::printf("%-8s %11s %15s %11s %9s\nCrosshatch\n", "8x8", "plain",
              "distributed", "added", "ratio");
  for (const OpTime& time : times) PrintLine(time);
  PrintPyTorch();
  return absl::OkStatus();
}

}  // namespace
}  // namespace crosshatch

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "times 8x8 ops on plain and on distributed tensors: "
      "[--rounds=N] [--python=PATH] [--against=PROGRAM [--pairs=N]]");
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = crosshatch::Run();
  if (!status.ok()) {
    std::fprintf(stderr, "dtensor_overhead: %s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
