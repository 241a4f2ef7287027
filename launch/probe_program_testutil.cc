// SPDX-License-Identifier: Apache-2.0

/// \file
/// A program for bad_start_test.py and endings_test.py. Variables select
/// whether its ranks do nothing, fail, or end in some way.

#include <dlfcn.h>
#include <netdb.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

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

/// Returns whether the variable names this rank, or all of them.
bool Names(const char* name, const World& world) {
  const std::string value = Variable(name);
  return value == "all" || value == absl::StrCat(world.rank());
}

/// Performs the fault named by PROBE_FAULT: ends this process or returns an
/// error.
absl::Status Fault(int rank) {
  const std::string fault = Variable("PROBE_FAULT");
  if (fault == "exit") std::exit(3);
  if (fault == "_exit") _exit(0);
  if (fault == "abort") std::abort();
  if (fault == "segv") raise(SIGSEGV);
  if (fault == "kill") {
    // During the next operation.
    std::thread([] {
      std::this_thread::sleep_for(std::chrono::microseconds(
          std::atoi(Variable("PROBE_KILL_AFTER").c_str())));
      raise(SIGKILL);
    }).detach();
    return absl::OkStatus();
  }
  if (fault == "memory") throw std::bad_alloc();
  if (fault == "cut") {
    // The link of tools/run_mpi_test_on_two_hosts.
    return std::system("ip link set va down") == 0
               ? absl::OkStatus()
               : absl::InternalError("no link to cut");
  }
  if (fault == "check") CH_CHECK(false) << "of the probe";
  if (fault == "checks") {
    // After this time no rank is in a collective.
    std::this_thread::sleep_for(std::chrono::seconds(1));
    CH_CHECK(rank != 0) << "of rank 0";
    CH_CHECK(rank == 0) << "of the others";
  }
  if (fault == "wait") {
    // Until the test has stopped others.
    const std::string go = absl::StrCat(Variable("PROBE_STOP"), "/go");
    while (!std::filesystem::exists(go)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  return absl::InternalError("out of luck");
}

/// Runs steps until a stop is requested. Each step gathers PROBE_DATA floats
/// from each rank, so a stop or fault comes in the middle of collectives.
absl::Status UntilStopped(World& world) {
  const auto count = std::atoi(Variable("PROBE_DATA").c_str());
  std::vector<float> mine(static_cast<size_t>(count));
  std::vector<float> all(mine.size() * static_cast<size_t>(world.size()));
  CH_ASSIGN_OR_RETURN(auto comm, world.Group("all", world.AllRanks(), "comm"));
  for (int step = 0;; ++step) {
    CH_ASSIGN_OR_RETURN(const bool stops, StopRequested(world));
    if (stops) return absl::OkStatus();
    if (step < 3) continue;
    if (step == 3 && world.rank() == 0 && !Variable("PROBE_STOP").empty()) {
      std::puts("runs");
      std::fflush(stdout);
    }
    if (step == 3 && Names("PROBE_FAULT_RANK", world)) {
      CH_RETURN_IF_ERROR(Fault(world.rank()));
    }
    if (count > 0) {
      CH_RETURN_IF_ERROR(AllGather(*comm, mine.data(), all.data(), count,
                                   kFloat32, world.context().SideStream("comm"),
                                   "data"));
      CH_RETURN_IF_ERROR(world.context().Synchronize());
      continue;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// Writes a file in place of a checkpoint.
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

/// Leaves a child process of rank 1, whose id is in the file PROBE_CHILD.
absl::Status LeaveChild(const World& world) {
  if (world.rank() != 1) return absl::OkStatus();
  return std::system(
             "sleep 60 </dev/null >/dev/null 2>&1 & echo $! >$PROBE_CHILD") == 0
             ? absl::OkStatus()
             : absl::InternalError("no child");
}

int Main(int argc, char** argv) {
  RunOptions options;
  if (const std::string ranks = Variable("PROBE_RANKS"); !ranks.empty()) {
    options.ranks = std::atoi(ranks.c_str());
  }
  options.agreed = {"--steps=3", absl::StrCat("--lr=", Variable("PROBE_LR"))};
  options.prepare = [](EngineKind, int rank) -> absl::Status {
    if (Variable("PROBE_SLOW_RANK") == absl::StrCat(rank)) pause();
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
        if (world.rank() == 0) {
          const int lines = std::atoi(Variable("PROBE_LINES").c_str());
          for (int i = 0; i < lines; ++i) std::puts("a line of rank 0");
          std::fflush(stdout);
        }
        if (!Variable("PROBE_CHILD").empty()) return LeaveChild(world);
        if (!Variable("PROBE_MPI").empty() ||
            (Variable("PROBE_STOP").empty() &&
             Variable("PROBE_FAULT_RANK").empty())) {
          return absl::OkStatus();
        }
        return UntilStopped(world);
      },
      options);
}

/// Sends PROBE_SIGNAL to this process if PROBE_MPI is `function` and
/// PROBE_FAULT_RANK is this rank.
void MeetMpi(const std::string& function) {
  std::string rank = Variable("RANK");
  if (rank.empty()) rank = Variable("OMPI_COMM_WORLD_RANK");
  if (Variable("PROBE_MPI") != function ||
      Variable("PROBE_FAULT_RANK") != rank) {
    return;
  }
  raise(std::atoi(Variable("PROBE_SIGNAL").c_str()));
}

}  // namespace
}  // namespace crosshatch

// Intercepts functions of MPI by its profiling interface (PMPI). The PMPI
// functions are missing in a build without MPI.
extern "C" {
int PMPI_Init_thread(int*, char***, int, int*) __attribute__((weak));
int PMPI_Finalize() __attribute__((weak));

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  crosshatch::MeetMpi("MPI_Init_thread");
  return PMPI_Init_thread(argc, argv, required, provided);
}

int MPI_Finalize() {
  crosshatch::MeetMpi("MPI_Finalize");
  return PMPI_Finalize();
}

// Intercepts ftruncate, which MPI calls on a new file of shared memory:
// "ftruncate NAME" in PROBE_MPI is a file whose name begins so.
int ftruncate(int file, off_t bytes) noexcept {
  static const auto next =
      reinterpret_cast<int (*)(int, off_t)>(dlsym(RTLD_NEXT, "ftruncate"));
  std::error_code error;
  const std::string name =
      std::filesystem::read_symlink(absl::StrCat("/proc/self/fd/", file), error)
          .filename();
  crosshatch::MeetMpi(
      absl::StrCat("ftruncate ", name.substr(0, name.find('.'))));
  return next(file, bytes);
}

// Simulates a name server that is down: each name takes PROBE_SLOW_NAMES
// milliseconds.
int getaddrinfo(const char* name, const char* service, const addrinfo* hints,
                addrinfo** found) {
  std::this_thread::sleep_for(std::chrono::milliseconds(
      std::atoi(crosshatch::Variable("PROBE_SLOW_NAMES").c_str())));
  static const auto next =
      reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  return next(name, service, hints, found);
}
}

int main(int argc, char** argv) { return crosshatch::Main(argc, argv); }
