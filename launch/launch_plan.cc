// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/launch_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/tensor/backends/cuda/built_cuda_backend.h"

namespace crosshatch {
namespace {

absl::Status CheckDevice(const RunOptions& options) {
  if (options.device == Device::Kind::kCuda) return absl::OkStatus();
  if (options.device == Device::Kind::kMeta) {
    return absl::InvalidArgumentError(
        "RunOptions::device is kMeta: must be kCpu or kCuda. A run without "
        "elements is a dry run: RunOptions::engine = EngineKind::kFake, "
        "--engine=fake");
  }
  if (!options.cuda.tf32) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--tf32 is for --device=cuda: the CPU multiplies in float32. Omit "
      "--tf32 (RunOptions::cuda.tf32), or compute on CUDA");
}

absl::Status OfCuda(const absl::Status& status) {
  return absl::Status(
      status.code(),
      absl::StrCat("--device=cuda: ", std::string(status.message())));
}

absl::Status CheckTime(const char* name, absl::Duration time) {
  if (time > absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": must be above zero"));
}

}  // namespace

absl::StatusOr<LaunchPlan> PlanLaunch(const RunOptions& options,
                                      const Environment& environment) {
  LaunchPlan plan = {
      .engine = options.engine,
      .ranks = options.ranks > 0 ? options.ranks : options.local_ranks};
  if (options.engine == EngineKind::kLocal ||
      options.engine == EngineKind::kFake) {
    return plan;
  }
  CH_ASSIGN_OR_RETURN(plan.info, DetectLaunch(environment));
  if (plan.info.launcher == Launcher::kNone) {
    if (options.engine == EngineKind::kAuto) {
      plan.engine = EngineKind::kLocal;
      return plan;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "--engine=processes: no launcher started this process as a "
        "rank: use mpirun -np ",
        plan.ranks,
        ", srun or torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR "
        "and MASTER_PORT"));
  }
  plan.engine = EngineKind::kProcesses;
  plan.ranks = plan.info.size;
  return plan;
}

absl::Status CheckPlan(const LaunchPlan& plan, const RunOptions& options) {
  if (!plan.info.wrong.empty()) {
    return absl::InvalidArgumentError(plan.info.wrong);
  }
  CH_RETURN_IF_ERROR(CheckDevice(options));
  CH_RETURN_IF_ERROR(CheckTime("--timeout", options.job.timeout));
  CH_RETURN_IF_ERROR(CheckTime("--start_timeout", options.start_timeout));
  CH_RETURN_IF_ERROR(
      CheckTime("--heartbeat_timeout", options.heartbeat_timeout));
  if (options.transport != DataTransport::kAuto &&
      plan.engine != EngineKind::kProcesses) {
    return absl::InvalidArgumentError(
        "--transport is for ranks that are processes, and these are not");
  }
  if (options.transport == DataTransport::kMpi && !plan.info.mpi_knows_peers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--transport=mpi: MPI cannot join processes that ",
        plan.info.launcher_name,
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
                   plan.info.launcher_name, " started ", plan.ranks,
                   plan.ranks == 1 ? " process" : " processes", ": start ",
                   options.ranks, ", or change ", options.ranks_from));
}

absl::StatusOr<std::vector<const DeviceBackend*>> CollectDevices(
    absl::FunctionRef<absl::StatusOr<const DeviceBackend*>(int index)> find,
    int most) {
  std::vector<const DeviceBackend*> devices;
  while (static_cast<int>(devices.size()) < most) {
    const absl::StatusOr<const DeviceBackend*> device =
        find(static_cast<int>(devices.size()));
    if (absl::IsNotFound(device.status()) && !devices.empty()) break;
    if (!device.ok()) return OfCuda(device.status());
    devices.push_back(*device);
  }
  return devices;
}

absl::StatusOr<std::vector<const DeviceBackend*>> FindDevices(
    const RunOptions& options, int ranks) {
  if (!options.job.backends.empty()) return options.job.backends;
  if (options.device != Device::Kind::kCuda) {
    return std::vector<const DeviceBackend*>();
  }
  return CollectDevices(
      [&](int index) { return BuiltCudaBackend(index, options.cuda); }, ranks);
}

absl::StatusOr<const DeviceBackend*> DryRunDevice(const RunOptions& options) {
  if (!options.job.backends.empty()) return options.job.backends[0];
  if (options.device != Device::Kind::kCuda) return nullptr;
  const auto device = BuiltCudaBackendForDryRuns();
  if (!device.ok()) return OfCuda(device.status());
  return *device;
}

std::string AgreedText(const RunOptions& options) {
  const bool is_cuda = options.device == Device::Kind::kCuda;
  std::string data =
      absl::StrCat("--device=", is_cuda ? "cuda" : "cpu",
                   options.nccl.deterministic ? " --deterministic" : "");
  if (is_cuda) {
    absl::StrAppend(&data, options.cuda.tf32 ? " --tf32" : "",
                    ", NCCL's own collectives from ",
                    options.nccl.least_collective_bytes, " bytes on");
  }
  std::vector<std::string> all = {data};
  if (options.transport != DataTransport::kAuto) {
    all.push_back(options.transport == DataTransport::kUcx ? "--transport=ucx"
                                                           : "--transport=mpi");
  }
  all.insert(all.end(), options.agreed.begin(), options.agreed.end());
  // One line per option, so newlines in values are escaped.
  for (std::string& option : all) option = absl::CEscape(option);
  return absl::StrJoin(all, "\n");
}

absl::Status CheckAgreed(const std::string& mine, const std::string& of_first) {
  if (mine == of_first) return absl::OkStatus();
  std::vector<std::string> here = absl::StrSplit(mine, '\n');
  std::vector<std::string> there = absl::StrSplit(of_first, '\n');
  const size_t count = std::max(here.size(), there.size());
  here.resize(count, "nothing more");
  there.resize(count, "nothing more");
  std::vector<std::string> differ_here;
  std::vector<std::string> differ_there;
  for (size_t i = 0; i < count; ++i) {
    if (here[i] == there[i]) continue;
    differ_here.push_back(here[i]);
    differ_there.push_back(there[i]);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "it runs with ", absl::StrJoin(differ_here, " "), ", and rank 0 with ",
      absl::StrJoin(differ_there, " "), ": start all ranks with the same"));
}

}  // namespace crosshatch
