// SPDX-License-Identifier: Apache-2.0

/// \file
/// A program to be killed, and one that looks at what it left.
///
/// usage: save_loop save|async DIR
///          Saves versions 1, 2, ... to DIR, replacing each by the next, and
///          prints each once it is there; until it is killed.
///        save_loop once DIR VERSION
///          Saves that version; exits with 1, and says why, where it cannot.
///        save_loop check DIR
///          Prints the version that DIR holds, whole, and exits with 0; or why
///          it does not, and exits with 1.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/async_save.h"
#include "crosshatch/checkpoint/checkpoint.h"
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
    // An asynchronous save has waited for the one before.
    const int64_t there = async ? version - 1 : version;
    if (world.rank() == 0 && there > 0) {
      std::printf("%lld\n", static_cast<long long>(there));
      std::fflush(stdout);
    }
  }
}

absl::Status SaveOnce(ch::World& world, const std::string& dir,
                      int64_t version) {
  CH_ASSIGN_OR_RETURN(const ch::DeviceMesh mesh,
                      ch::InitDeviceMesh(world, {{"fsdp", world.size()}}));
  CH_ASSIGN_OR_RETURN(const ch::nn::StateDict state, StateOf(mesh, version));
  return ch::checkpoint::SaveCheckpoint(world, state, dir, {.overwrite = true});
}

absl::Status Check(ch::World& world, const std::string& dir) {
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
  std::printf("%lld\n", static_cast<long long>(version));
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 2 ? argv[1] : "";
  const bool once = mode == "once" && argc == 4;
  const bool others =
      argc == 3 && (mode == "save" || mode == "async" || mode == "check");
  if (!once && !others) {
    std::fprintf(stderr,
                 "usage: save_loop save|async|check DIR | once DIR VERSION\n");
    return 2;
  }
  const std::string dir = argv[2];
  const absl::Status status = ch::RunLocal(
      mode == "check" ? 1 : 2, [&](ch::World& world) -> absl::Status {
        if (mode == "check") return Check(world, dir);
        if (once) return SaveOnce(world, dir, std::atoll(argv[3]));
        return SaveForever(world, dir, mode == "async");
      });
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
