// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_RUN_OPTIONS_H_
#define CROSSHATCH_LAUNCH_RUN_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "crosshatch/comm/job_options.h"
#include "crosshatch/comm/nccl/nccl_options.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/tensor/backends/cuda/cuda_options.h"
#include "crosshatch/tensor/device.h"

namespace crosshatch {

/// The engine of a job.
enum class EngineKind : uint8_t {
  kAuto,       ///< Processes if a launcher started this one, else threads.
  kLocal,      ///< Threads of this process, whatever started it.
  kProcesses,  ///< This process is one rank.
  kFake,       ///< A dry run of one rank.
};

/// How ranks that are processes exchange data.
enum class DataTransport : uint8_t {
  kAuto,  ///< MPI if mpirun or PMIx started the processes, else UCX.
  kMpi,
  kUcx,
};

struct RunOptions {
  EngineKind engine = EngineKind::kAuto;
  /// For processes only.
  DataTransport transport = DataTransport::kAuto;
  /// The number of ranks that the program needs. 0: the number of processes, or
  /// local_ranks on the local engine.
  int ranks = 0;
  int local_ranks = 1;
  /// The origin of `ranks`, for messages, e.g. "--mesh=fsdp:2,tp:2".
  std::string ranks_from = "the program";
  /// The rank that a dry run runs.
  int fake_rank = 0;
  /// kCpu or kCuda. Ranks of a machine use its CUDA devices in turn and share
  /// them if there are fewer. Rank threads exchange data themselves, processes
  /// by NCCL.
  Device::Kind device = Device::Kind::kCpu;
  /// With kCuda only.
  CudaOptions cuda = {};
  NcclOptions nccl = {};
  /// Options of all engines: timeout, threads, event sinks. If not empty,
  /// `job.backends` replace the devices that `device` selects.
  JobOptions job = {};
  /// How long processes wait for all ranks to start; under mpirun, which starts
  /// them all, at most job.timeout.
  absl::Duration start_timeout = absl::Minutes(5);
  /// How long a process may send no heartbeat before it counts as dead; at most
  /// job.timeout. A process that ends is noticed at once.
  absl::Duration heartbeat_timeout = absl::Seconds(30);
  /// Also begin the lines of rank 0 with its rank.
  bool log_prefix = false;
  /// The exit status of a run that a signal has stopped (launch/stop.h): 143,
  /// the shell's for SIGTERM, or 0.
  int stop_status = 143;

  /// Options that must be equal on all ranks, e.g. "--lr=0.1"; the same number
  /// on each rank, in the same order. Processes compare them, and --device and
  /// the like, after `prepare`; a difference ends the job with a message that
  /// names the option, the rank and rank 0's value.
  std::vector<std::string> agreed = {};

  /// Called once in each process before its ranks run, to check what they need.
  /// The first error of any process is the job's.
  /// \param engine kLocal, kProcesses or kFake.
  /// \param rank of the process; 0 unless kProcesses.
  std::function<absl::Status(EngineKind engine, int rank)> prepare = nullptr;
  /// Called on each rank, by its thread, after its function has returned OK
  /// because of a stop. State to be saved must outlive the function.
  std::function<absl::Status(World& world)> on_stop = nullptr;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_RUN_OPTIONS_H_
