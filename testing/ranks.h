// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TESTING_RANKS_H_
#define CROSSHATCH_TESTING_RANKS_H_

/// \file
/// Runs a test's body on several ranks. A test names no engine: each target of
/// its ch_rank_test selects one, and a device (engine.h). Ranks are threads of
/// the test's process, except with MPI, where each is a process that runs the
/// whole program; processes that a job does not need wait for its end. A
/// process of MPI sees only what its own rank writes to the test's variables.
/// Check values on the ranks, or get those of rank 0 by OfFirstRank.
///
///     OnMesh({{"fsdp", 2}, {"tp", 2}}, [](const DeviceMesh& mesh)
///         -> absl::Status {
///       CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
///       CH_EXPECT_EQ(tp.size(0), 2);
///       return absl::OkStatus();
///     });
///
/// A rank checks by the macros of expect.h. What failed is reported here, on
/// the test's thread, at the line of the check, with the ranks that it failed
/// on: in the order of ranks, not of time. Every process reports all.

#include <functional>
#include <initializer_list>
#include <source_location>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/device.h"
#include "crosshatch/tensor/device_backend.h"
#include "crosshatch/testing/engine.h"
#include "crosshatch/testing/expect.h"

namespace crosshatch {

/// Runs a job of `ranks` ranks, as RunLocal does.
using RunnerOfRanks = std::function<absl::Status(
    int ranks, absl::FunctionRef<absl::Status(World&)> body,
    const JobOptions& options)>;

/// Registers the runner of jobs whose options name no device. Libraries that a
/// test links (on_cuda.cc) call it before main.
/// \returns true.
bool RegisterRunner(TestEngine engine, Device::Kind device,
                    RunnerOfRanks runner);

/// Returns whether a runner is registered. TestEngine::kLocal and kMpi on CPUs
/// need none.
bool HasRunner(TestEngine engine, Device::Kind device);

/// Runs `body` on each of `ranks` ranks and reports failed checks.
/// \returns the status of the job, for tests of failures.
absl::Status StatusOfRanks(int ranks,
                           absl::FunctionRef<absl::Status(World&)> body,
                           const JobOptions& options = {});

/// Runs a job that must succeed. If it does not, its status is a test failure
/// at the caller's line.
void RunRanks(
    int ranks, absl::FunctionRef<absl::Status(World&)> body,
    const JobOptions& options = {},
    const std::source_location& where = std::source_location::current());

/// Returns rank 0's `text` on every process of the test. All processes call it,
/// outside of jobs.
std::string OfFirstRank(std::string text);
std::vector<std::string> OfFirstRank(std::vector<std::string> lines);

/// Returns the path of a directory of the test that does not exist yet. All
/// processes of the test call it, outside of jobs.
std::string FreshDir(const std::string& name);

/// The axes of a mesh: {{"fsdp", 2}, {"tp", 2}}, or {2, 2} with the default
/// names "a", "b" and so on.
class MeshAxes final {
 public:
  MeshAxes(std::initializer_list<MeshAxis> axes) : axes_(axes) {}
  MeshAxes(std::vector<MeshAxis> axes) : axes_(std::move(axes)) {}
  MeshAxes(std::initializer_list<int> sizes)
      : MeshAxes(std::vector<int>(sizes)) {}
  MeshAxes(const std::vector<int>& sizes);

  const std::vector<MeshAxis>& axes() const { return axes_; }
  /// Returns the product of the sizes.
  int ranks() const;

 private:
  std::vector<MeshAxis> axes_;
};

/// Runs `body` on every rank of a mesh of all ranks, as RunRanks does. It takes
/// a const DeviceMesh& and returns an absl::Status or nothing.
template <typename Body>
void OnMesh(
    const MeshAxes& axes, const Body& body, const JobOptions& options = {},
    const std::source_location& where = std::source_location::current()) {
  const auto on_rank = [&](World& world) -> absl::Status {
    const absl::StatusOr<DeviceMesh> mesh = InitDeviceMesh(world, axes.axes());
    if (!mesh.ok()) return mesh.status();
    if constexpr (std::is_void_v<decltype(body(*mesh))>) {
      body(*mesh);
      return absl::OkStatus();
    } else {
      return body(*mesh);
    }
  };
  RunRanks(axes.ranks(), on_rank, options, where);
}

}  // namespace crosshatch

#endif  // CROSSHATCH_TESTING_RANKS_H_
