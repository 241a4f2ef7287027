// SPDX-License-Identifier: Apache-2.0

/// \file
/// save_loop: saves until a test kills it, and then checks the result.
///
/// usage: save_loop save|async DIR
///          Saves versions 1, 2, ... to DIR until it is killed. Each replaces
///          the previous one and is printed when it is complete.
///        save_loop keep|keep_async DIR
///          Saves the versions as steps of a run that keeps the last two.
///        save_loop once DIR VERSION
///          Saves that version. On an error, prints it and exits with 1.
///        save_loop check DIR
///          Prints the version in DIR and exits with 0 if it is complete.
///          Otherwise prints an error and exits with 1.
///        save_loop check_run DIR
///          Does the same for the latest step, if all steps are complete.
///
/// Two ranks save: threads or, with mpirun, its processes.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/async_save.h"
#include "crosshatch/checkpoint/checkpoint.h"
#include "crosshatch/checkpoint/run_directory.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/creation.h"

namespace ch = crosshatch;

namespace {

constexpr int kTensors = 8;
constexpr int64_t kRows = 251;
constexpr int64_t kColumns = 64;

absl::StatusOr<ch::nn::StateDict> StateOf(const ch::DeviceMesh& mesh,
                                          int64_t version) {
  CH_ASSIGN_OR_RETURN(
      const ch::Layout rows,
      ch::Layout::FromPlacements(mesh.layout(), 2, {ch::Shard(0)}));
  ch::nn::StateDict state;
  for (int i = 0; i < kTensors; ++i) {
    const ch::Tensor whole =
        ch::Full({kRows, kColumns}, static_cast<double>(version + i));
    CH_RETURN_IF_ERROR(state.Add(absl::StrCat("w", i),
                                 ch::DistributeTensor(whole, mesh, rows)));
  }
  CH_RETURN_IF_ERROR(state.Add("version", version));
  return state;
}

class Held final : public ch::nn::Stateful {
 public:
  explicit Held(ch::nn::StateDict state) : state_(std::move(state)) {}
  absl::StatusOr<ch::nn::StateDict> State() override { return state_; }
  absl::StatusOr<ch::nn::StateDict> StateToFill(
      const std::vector<std::string>&) override {
    return state_;
  }
  absl::Status Restore(const ch::nn::StateDict&) override {
    return absl::OkStatus();
  }

 private:
  const ch::nn::StateDict state_;
};

/// Prints a version once it exists. An asynchronous save has waited for the
/// previous one.
void PrintVersion(const ch::World& world, int64_t version, bool async) {
  const int64_t there = async ? version - 1 : version;
  if (world.rank() != 0 || there < 1) return;
  std::printf("%lld\n", static_cast<long long>(there));
  std::fflush(stdout);
}

absl::Status KeepForever(ch::World& world, const std::string& dir, bool async) {
  CH_ASSIGN_OR_RETURN(const ch::DeviceMesh mesh,
                      ch::InitDeviceMesh(world, {{"fsdp", world.size()}}));
  ch::checkpoint::RunCheckpoints run(world, dir, {.keep = 2, .async = async});
  for (int64_t version = 1;; ++version) {
    CH_ASSIGN_OR_RETURN(ch::nn::StateDict state, StateOf(mesh, version));
    Held held(std::move(state));
    CH_RETURN_IF_ERROR(run.Save(held, version));
    PrintVersion(world, version, async);
  }
}

absl::Status SaveForever(ch::World& world, const std::string& dir, bool async) {
  CH_ASSIGN_OR_RETURN(const ch::DeviceMesh mesh,
                      ch::InitDeviceMesh(world, {{"fsdp", world.size()}}));
  ch::checkpoint::AsyncCheckpointer saver(world);
  for (int64_t version = 1;; ++version) {
    CH_ASSIGN_OR_RETURN(const ch::nn::StateDict state, StateOf(mesh, version));
    if (async) {
      CH_RETURN_IF_ERROR(saver.Save(state, dir, /*overwrite=*/true));
    } else {
      CH_RETURN_IF_ERROR(ch::checkpoint::SaveCheckpoint(world, state, dir,
                                                        {.overwrite = true}));
    }
    PrintVersion(world, version, async);
  }
}

absl::Status SaveOnce(ch::World& world, const std::string& dir,
                      int64_t version) {
  CH_ASSIGN_OR_RETURN(const ch::DeviceMesh mesh,
                      ch::InitDeviceMesh(world, {{"fsdp", world.size()}}));
  CH_ASSIGN_OR_RETURN(const ch::nn::StateDict state, StateOf(mesh, version));
  return ch::checkpoint::SaveCheckpoint(world, state, dir, {.overwrite = true});
}

/// Returns the version in `dir` if it is complete.
absl::StatusOr<int64_t> VersionIn(ch::World& world, const std::string& dir) {
  CH_ASSIGN_OR_RETURN(const ch::DeviceMesh mesh,
                      ch::InitDeviceMesh(world, {{"fsdp", world.size()}}));
  CH_ASSIGN_OR_RETURN(ch::nn::StateDict state, StateOf(mesh, 0));
  CH_RETURN_IF_ERROR(ch::checkpoint::LoadCheckpoint(world, state, dir));
  CH_ASSIGN_OR_RETURN(const int64_t version, state.Get<int64_t>("version"));
  for (int i = 0; i < kTensors; ++i) {
    CH_ASSIGN_OR_RETURN(const ch::Tensor w,
                        state.Get<ch::Tensor>(absl::StrCat("w", i)));
    for (const float value : ch::LocalTensor(w).ToVector<float>()) {
      if (value == static_cast<float>(version + i)) continue;
      return absl::DataLossError(
          absl::StrCat("w", i, " of version ", version, " holds ", value));
    }
  }
  return version;
}

absl::Status Check(ch::World& world, const std::string& dir) {
  CH_ASSIGN_OR_RETURN(const int64_t version, VersionIn(world, dir));
  std::printf("%lld\n", static_cast<long long>(version));
  return absl::OkStatus();
}

absl::Status CheckRun(ch::World& world, const std::string& dir) {
  CH_ASSIGN_OR_RETURN(const std::vector<int64_t> steps,
                      ch::checkpoint::StepsIn(dir));
  if (steps.empty()) return absl::NotFoundError(dir + " has no step");
  for (const int64_t step : steps) {
    CH_ASSIGN_OR_RETURN(
        const int64_t version,
        VersionIn(world, ch::checkpoint::StepDirectory(dir, step)));
    if (version == step) continue;
    return absl::DataLossError(
        absl::StrCat("step ", step, " is version ", version));
  }
  std::printf("%lld\n", static_cast<long long>(steps.back()));
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 2 ? argv[1] : "";
  const bool once = mode == "once" && argc == 4;
  const bool others = argc == 3 && (mode == "save" || mode == "async" ||
                                    mode == "keep" || mode == "keep_async" ||
                                    mode == "check" || mode == "check_run");
  if (!once && !others) {
    std::fprintf(stderr,
                 "usage: save_loop save|async|keep|keep_async|check|check_run "
                 "DIR | once DIR VERSION\n");
    return 2;
  }
  const std::string dir = argv[2];
  const auto run = [&](ch::World& world) -> absl::Status {
    if (mode == "check") return Check(world, dir);
    if (mode == "check_run") return CheckRun(world, dir);
    if (once) return SaveOnce(world, dir, std::atoll(argv[3]));
    if (mode == "keep" || mode == "keep_async") {
      return KeepForever(world, dir, mode == "keep_async");
    }
    return SaveForever(world, dir, mode == "async");
  };
  const bool by_mpirun = std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr;
  const int ranks = mode == "check" || mode == "check_run" ? 1 : 2;
  const absl::Status status =
      by_mpirun ? ch::RunMpi(run) : ch::RunLocal(ranks, run);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
