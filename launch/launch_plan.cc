// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/launch_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/launch/device_choice.h"

namespace crosshatch {
namespace {

absl::Status CheckTime(const char* name, absl::Duration time) {
  if (time > absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": must be above zero"));
}

}  // namespace

absl::StatusOr<Backend> ParseBackend(const std::string& name,
                                     const std::string& flag) {
  if (name == "auto") return Backend::kAuto;
  if (name == "local") return Backend::kLocal;
  if (name == "mpi") return Backend::kMpi;
  if (name == "fake") return Backend::kFake;
  return absl::InvalidArgumentError(
      absl::StrCat(flag, "=", name, ": must be auto, local, mpi or fake"));
}

absl::StatusOr<DataTransport> ParseTransport(const std::string& name,
                                             const std::string& flag) {
  if (name == "auto") return DataTransport::kAuto;
  if (name == "mpi") return DataTransport::kMpi;
  if (name == "ucx") return DataTransport::kUcx;
  return absl::InvalidArgumentError(
      absl::StrCat(flag, "=", name, ": must be auto, mpi or ucx"));
}

absl::StatusOr<Device::Kind> ParseDevice(const std::string& name,
                                         const std::string& flag) {
  if (name == "cpu") return Device::Kind::kCpu;
  if (name == "cuda") return Device::Kind::kCuda;
  return absl::InvalidArgumentError(
      absl::StrCat(flag, "=", name, ": must be cpu or cuda"));
}

absl::StatusOr<LaunchPlan> PlanLaunch(const RunOptions& options,
                                      const Environment& environment) {
  LaunchPlan plan = {
      .backend = options.backend,
      .ranks = options.ranks > 0 ? options.ranks : options.local_ranks};
  if (options.backend == Backend::kLocal || options.backend == Backend::kFake) {
    return plan;
  }
  CH_ASSIGN_OR_RETURN(plan.info, DetectLaunch(environment));
  if (plan.info.launcher == Launcher::kNone) {
    if (options.backend == Backend::kAuto) {
      plan.backend = Backend::kLocal;
      return plan;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "--backend=mpi: nobody started this process as a rank: use mpirun -np ",
        plan.ranks,
        ", srun or torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR "
        "and MASTER_PORT"));
  }
  plan.backend = Backend::kMpi;
  plan.ranks = plan.info.size;
  return plan;
}

bool SpeaksForAll(const Environment& environment) {
  const absl::StatusOr<LaunchInfo> info = DetectLaunch(environment);
  return !info.ok() || info->rank == 0;
}

absl::Status CheckPlan(const LaunchPlan& plan, const RunOptions& options) {
  if (!plan.info.wrong.empty()) {
    return absl::InvalidArgumentError(plan.info.wrong);
  }
  CH_RETURN_IF_ERROR(CheckDevice(options));
  CH_RETURN_IF_ERROR(CheckTime("--timeout", options.timeout));
  CH_RETURN_IF_ERROR(CheckTime("--start_timeout", options.start_timeout));
  CH_RETURN_IF_ERROR(
      CheckTime("--heartbeat_timeout", options.heartbeat_timeout));
  if (options.transport != DataTransport::kAuto &&
      plan.backend != Backend::kMpi) {
    return absl::InvalidArgumentError(
        "--transport is for ranks that are processes, and these are not");
  }
  if (options.transport == DataTransport::kMpi && !plan.info.mpi_knows_peers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--transport=mpi: MPI cannot join processes that ",
        LauncherName(plan.info.launcher),
        " started; use mpirun, srun --mpi=pmix, or --transport=ucx"));
  }
  if (options.ranks < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.ranks_from, " needs ", options.ranks, " ranks"));
  }
  if (options.ranks == 0 || options.ranks == plan.ranks) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(options.ranks_from, " needs ", options.ranks, " ranks, and ",
                   LauncherName(plan.info.launcher), " started ", plan.ranks,
                   plan.ranks == 1 ? " process" : " processes", ": start ",
                   options.ranks, ", or change ", options.ranks_from));
}

}  // namespace crosshatch
