// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_RUN_OPTIONS_H_
#define CROSSHATCH_LAUNCH_RUN_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "crosshatch/comm/nccl/nccl_options.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/tensor/backends/cuda/cuda_options.h"
#include "crosshatch/tensor/device.h"
#include "crosshatch/tensor/device_backend.h"

namespace crosshatch {

enum class Backend : uint8_t {
  kAuto,   ///< mpi where a launcher started this process, else local.
  kLocal,  ///< Rank threads of this process, whatever started it.
  kMpi,    ///< This process is one rank, whatever the transport.
  kFake,   ///< A dry run of one rank.
};

/// \error kInvalidArgument naming `flag` and the backends that there are.
absl::StatusOr<Backend> ParseBackend(const std::string& name,
                                     const std::string& flag);

/// How ranks that are processes exchange data.
enum class DataTransport : uint8_t {
  kAuto,  ///< MPI where mpirun or PMIx started the processes, else UCX.
  kMpi,
  kUcx,
};

/// \error kInvalidArgument naming `flag` and the transports that there are.
absl::StatusOr<DataTransport> ParseTransport(const std::string& name,
                                             const std::string& flag);

/// \error kInvalidArgument naming `flag` and the devices that there are.
absl::StatusOr<Device::Kind> ParseDevice(const std::string& name,
                                         const std::string& flag);

struct RunOptions {
  Backend backend = Backend::kAuto;
  /// Of kMpi; kAuto, and no other, where ranks are threads.
  DataTransport transport = DataTransport::kAuto;
  /// How many ranks the program needs; 0: as many as there are processes, and
  /// local_ranks on `local`.
  int ranks = 0;
  int local_ranks = 1;
  /// Where `ranks` comes from, for messages, e.g. "--mesh=fsdp:2,tp:2".
  std::string ranks_from = "the program";
  /// The rank that a dry run runs.
  int fake_rank = 0;
  /// kCpu, or kCuda, and no other: the ranks of a machine are dealt out to its
  /// devices, one after another, and share them where they are fewer. Rank
  /// threads exchange data by themselves, processes by NCCL.
  Device::Kind device = Device::Kind::kCpu;
  /// With kCuda only.
  CudaOptions cuda = {};
  /// How the devices of kCuda are found, by index: an error of kNotFound says
  /// that there are no more. Null: BuiltCudaBackend.
  std::function<absl::StatusOr<const DeviceBackend*>(
      int index, const CudaOptions& options)>
      cuda_device = nullptr;
  /// What a dry run of kCuda is one of. Null: BuiltCudaBackendForDryRuns.
  std::function<absl::StatusOr<const DeviceBackend*>()> cuda_of_dry_runs =
      nullptr;
  NcclOptions nccl = {};
  /// How long a rank may keep the others waiting, and, once a job has failed,
  /// how long a rank's function may take to return, 5 s at least, before its
  /// process is ended.
  absl::Duration timeout = absl::Minutes(10);
  /// How long ranks that are processes wait for all to start; where mpirun has
  /// started them all, at most `timeout` is used.
  absl::Duration start_timeout = absl::Minutes(5);
  /// How long a process may give no sign of life before it counts as dead; at
  /// most `timeout` is used. One that ends is noticed at once.
  absl::Duration heartbeat_timeout = absl::Seconds(30);
  /// Begin the lines of all ranks with "[rank R] ". Else those of rank 0, which
  /// speaks for the job, have nothing in front.
  bool log_prefix = false;
  /// The exit status of a run that a signal has stopped (launch/stop.h): 143,
  /// as of a process that SIGTERM ends, or 0.
  int stop_status = 143;

  /// What ranks must be started with alike, as messages name it, e.g.
  /// "--lr=0.1"; as many on each rank, in the same order. Ranks that are
  /// processes compare it when all are prepared, beside --device and its like:
  /// a difference ends the job, with a message that names the option, a rank
  /// and what rank 0 has.
  std::vector<std::string> agreed = {};

  /// Called once in each process before ranks run, with what it will be: what
  /// a rank must have and may lack. The first error of any process is that of
  /// the job.
  /// \param backend kLocal, kMpi or kFake.
  /// \param rank of the process; 0 but with kMpi.
  std::function<absl::Status(Backend backend, int rank)> prepare = nullptr;
  /// Called on each rank, by its thread, when its function has returned without
  /// error because of a stop. What it saves stands outside of the function, and
  /// is gone when this returns, as all that a rank has.
  std::function<absl::Status(World& world)> on_stop = nullptr;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_RUN_OPTIONS_H_
