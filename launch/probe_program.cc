// SPDX-License-Identifier: Apache-2.0

/// \file
/// A program for bad_start_test.py and endings_test.py, whose ranks have
/// nothing to do, or fail, or end in some way, as variables say.

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <new>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/launch/job_hosts.h"
#include "crosshatch/launch/run.h"
#include "crosshatch/launch/stop.h"

namespace crosshatch {
namespace {

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Whether the variable names this rank, or all of them.
bool Names(const char* name, const World& world) {
  const std::string value = Variable(name);
  return value == "all" || value == absl::StrCat(world.rank());
}

/// Ends this process, or returns, in the way that PROBE_FAULT names.
absl::Status Fault() {
  const std::string fault = Variable("PROBE_FAULT");
  if (fault == "exit") std::exit(3);
  if (fault == "_exit") _exit(0);
  if (fault == "abort") std::abort();
  if (fault == "segv") raise(SIGSEGV);
  if (fault == "memory") throw std::bad_alloc();
  if (fault == "check") CH_CHECK(false) << "of the probe";
  return absl::InternalError("out of luck");
}

/// The others hear of it in the middle of what they do together.
absl::Status UntilStopped(World& world) {
  for (int step = 0;; ++step) {
    CH_ASSIGN_OR_RETURN(const bool stops, StopRequested(world));
    if (stops) return absl::OkStatus();
    if (step < 3) continue;
    if (step == 3 && world.rank() == 0 && !Variable("PROBE_STOP").empty()) {
      std::puts("runs");
      std::fflush(stdout);
    }
    if (Names("PROBE_FAULT_RANK", world)) return Fault();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// What a checkpoint would be.
absl::Status WriteOnStop(World& world) {
  if (Names("PROBE_BAD_STOP", world)) {
    return absl::DataLossError("the disk is full");
  }
  std::ofstream file(
      absl::StrCat(Variable("PROBE_STOP"), "/rank", world.rank()));
  file << world.size();
  return absl::OkStatus();
}

absl::Status PrintHosts(World& world) {
  CH_ASSIGN_OR_RETURN(const JobHosts hosts, HostsOf(world));
  std::string text =
      absl::StrCat("rank ", world.rank(), ": ", hosts.local_rank, " of ",
                   hosts.local_size, " on ", hosts.hosts[hosts.host], "\n");
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  RunOptions options;
  if (const std::string ranks = Variable("PROBE_RANKS"); !ranks.empty()) {
    options.ranks = std::atoi(ranks.c_str());
  }
  options.prepare = [](Backend, int rank) -> absl::Status {
    if (Variable("PROBE_BAD_RANK") != absl::StrCat(rank)) {
      return absl::OkStatus();
    }
    return absl::NotFoundError("the data are not here");
  };
  options.on_stop = WriteOnStop;
  return Run(
      argc, argv,
      [](World& world) -> absl::Status {
        if (!Variable("PROBE_HOSTS").empty()) return PrintHosts(world);
        if (Variable("PROBE_STOP").empty() &&
            Variable("PROBE_FAULT_RANK").empty()) {
          return absl::OkStatus();
        }
        return UntilStopped(world);
      },
      options);
}

}  // namespace
}  // namespace crosshatch

int main(int argc, char** argv) { return crosshatch::Main(argc, argv); }
