// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_WORLD_H_
#define CROSSHATCH_COMM_WORLD_H_

/// \file
/// World: one rank's view of a job, which makes its communicators. RunLocal,
/// RunMpi and RunFake start jobs.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "crosshatch/base/event_sink.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/comm/group_key.h"
#include "crosshatch/comm/job_options.h"
#include "crosshatch/comm/nccl/nccl_options.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {

class DeviceBackend;
class ControlPlane;
class DataPlanes;
class FailureChannel;

/// One rank's view of the running job, or of some of its ranks (Subset).
/// \threadsafety the rank's thread only.
class World final {
 public:
  /// Makes the world of the whole job.
  /// \param control, planes, context of this rank; they outlive the world.
  World(ControlPlane& control, DataPlanes& planes, RankContext& context);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// Returns "local", "mpi", "ucx", "nccl" or "fake".
  const std::string& engine() const;
  /// \name The planes of the engine, for tests that wrap them
  /// @{
  ControlPlane& control() const { return control_; }
  DataPlanes& planes() const { return planes_; }
  /// @}
  /// Returns this rank's index in this world, from 0 to size() - 1.
  int rank() const { return rank_; }
  int size() const;
  /// Returns this rank's index in the job, which groups, meshes and messages
  /// use.
  int world_rank() const { return context_.world_rank(); }
  RankContext& context() const { return context_; }
  Device device() const { return context_.device(); }
  /// Returns the world ranks of this world, by index.
  std::vector<int> AllRanks() const;
  /// Returns whether `world_rank` is a rank of this world.
  bool Contains(int world_rank) const;

  /// Returns the world of `world_ranks`, for example of a pipeline stage. A
  /// program runs in it as in a job of these ranks alone: `rank`, `size`,
  /// meshes, checkpoints and Group are of these ranks. An error of any rank
  /// still ends the whole job, and names world ranks. Called by the members
  /// only; communicates nothing. Equal ranks give the same world, which lives
  /// as long as the job's.
  /// \param world_ranks ranks of this world by their index in the new one.
  /// \error kInvalidArgument unless they are different ranks of this world,
  ///     this one among them.
  absl::StatusOr<World*> Subset(std::vector<int> world_ranks);

  /// Returns the communicator of `world_ranks` for work on stream
  /// `stream_name`. Called by all members; calls with equal arguments return
  /// the same one.
  /// \param name of the group in errors and counts: the mesh axis, or axes
  ///     joined by ",".
  /// \param world_ranks of the members, in the order of their indices.
  /// \error kInvalidArgument unless `world_ranks` are different ranks of this
  ///     world, this one among them; errors of the engine.
  absl::StatusOr<std::shared_ptr<Communicator>> Group(
      const std::string& name, std::vector<int> world_ranks,
      const std::string& stream_name);

  /// Sets the longest time that a rank may keep the others waiting in groups
  /// named `name`, instead of JobOptions::timeout. Affects groups of this rank
  /// that are made later; all ranks call it alike, before such a group exists.
  /// \error kInvalidArgument unless `timeout` is positive; kFailedPrecondition
  ///     if a group of that name exists.
  absl::Status SetTimeout(const std::string& name, absl::Duration timeout);

  /// Prepares the groups of a mesh's axes, so that an engine can make their
  /// communicators together, as NCCL splits one. All members of `all` call it,
  /// in the same order among its collectives.
  /// \param groups for each axis the ranks of this rank's group, in the order
  ///     of their indices; empty if this rank is in none.
  absl::Status Split(Communicator& all,
                     const std::vector<std::vector<int>>& groups);

  /// Returns all communicators of the job that this rank has made, in the order
  /// of creation.
  const std::vector<std::shared_ptr<Communicator>>& groups() const {
    return job_.groups_;
  }

  /// Fails this rank and so the job: all ranks are poisoned and all groups
  /// fail, so that peers fail instead of waiting. `error` must not be OK.
  void Abort(const absl::Status& error);

 private:
  World(World& job, std::vector<int> ranks, int rank);

  /// Returns this rank's index in `key`, and checks the ranks.
  absl::StatusOr<int> MemberOf(const GroupKey& key) const;

  ControlPlane& control_;
  DataPlanes& planes_;
  RankContext& context_;
  /// The world of the whole job: this one, unless it is a subset.
  World& job_;
  /// Of a subset: its world ranks. Empty: all of the job.
  const std::vector<int> ranks_;
  const int rank_;
  /// \name Of the job's world
  /// @{
  std::map<GroupKey, std::shared_ptr<Communicator>> by_key_;
  std::vector<std::shared_ptr<Communicator>> groups_;
  /// By the name of groups.
  std::map<std::string, absl::Duration> timeouts_;
  std::map<std::vector<int>, std::unique_ptr<World>> subsets_;
  /// @}
};

/// Runs `fn` on `ranks` threads of this process, one for each rank, and returns
/// when all have returned. An error of one rank aborts the others. Drains all
/// streams of a rank before it counts as finished.
/// \returns OK, or the first failure. Its text names the rank, or the group and
///     its ranks.
absl::Status RunLocal(int ranks, absl::FunctionRef<absl::Status(World&)> fn,
                      const JobOptions& options = {});

/// How processes that exchange data by UCX connect.
struct UcxJoin {
  int rank = 0;
  int size = 1;
  /// The coordinator's name or address. UCX uses the network interface by which
  /// this process reaches it. Empty: all interfaces.
  std::string coordinator_host;
  /// Returns the blobs of all processes, by rank. All of them call it, equally
  /// often for each job.
  std::function<absl::StatusOr<std::vector<std::string>>(std::string blob)>
      gather = nullptr;
};

/// Options of a job whose ranks are processes.
struct MpiOptions {
  /// Without `planes` the memory of `backends` must be host-addressable.
  JobOptions job = {};
  /// The data plane (comm/data_plane.h); World::engine is then its name, and
  /// MPI or UCX carries control messages alone. Null: MPI or UCX also moves the
  /// data. Outlives the run.
  DataPlanes* planes = nullptr;
  /// Reports processes that died, and ends this process if its rank does not
  /// return after a failure. Null: only ranks that wait for a dead process in a
  /// collective notice it, after the timeout. Outlives the run.
  FailureChannel* failure_channel = nullptr;
  /// If not null, processes exchange data by UCX, with any launcher. If null,
  /// they use MPI, and mpirun or a launcher with PMIx started them. The same on
  /// every process; must outlive the run.
  const UcxJoin* ucx = nullptr;
  /// The number of processes, from rank 0 on, that run the job; on the others
  /// the call returns OK as soon as all have called it. 0: all. The same on
  /// every process.
  int ranks = 0;
};

/// Runs `fn` as this process's rank. Every process of the job calls it; returns
/// when `fn` has returned on all of them. A process may run several jobs one
/// after the other. The first call without MpiOptions::ucx initialises MPI,
/// which is finalised when the process exits.
///
/// Once a process of the job is lost, or has moved no data for the timeout, no
/// job can run and MPI cannot be finalised. The call returns the failure, and
/// the process must end with a nonzero status.
/// \returns the same on every rank: OK, or the first failure as of RunLocal.
/// \error kUnimplemented in a build without MPI (--//:mpi=false), or without
///     UCX (--//:ucx=false).
absl::Status RunMpi(absl::FunctionRef<absl::Status(World&)> fn,
                    const MpiOptions& options = {});

/// Finalises MPI after the last job of this process, while the job is still
/// watched. Otherwise MPI is finalised when the process exits. Does nothing if
/// MPI does not run here, or if the processes have not ended the last job
/// together.
///
/// Waits, without a timeout, for the other processes, each of which calls it or
/// exits. This process cannot run another job.
/// \threadsafety one thread at a time, and none while a job runs.
void EndMpi();

/// Returns the blobs of all processes, by rank. Called by every process, while
/// it runs no job. Waits without a bound for a process that does not come.
/// \param blob of any size.
/// \error as of RunMpi.
absl::StatusOr<std::vector<std::string>> ExchangeByMpi(const std::string& blob);

struct FakeOptions {
  int world_size = 1;
  int rank = 0;
  /// The device whose memory is accounted; null: the CPU. Outlives the run.
  const DeviceBackend* backend = nullptr;
  EventSink* sink = nullptr;
  /// Simulates processes that use NCCL with these options, whose device memory
  /// for sums is accounted, too.
  std::optional<NcclOptions> nccl = {};
};

/// Runs `fn` as one rank of a job of any size, without the others and without
/// computing: tensors are on Device::Meta(). Allocations, collectives and
/// changes of state are accounted and logged as in a real run of the same
/// program. A program that branches on values, or on exchanged blobs, may take
/// another branch. Communicator::Exchange returns this rank's own blob for
/// every member, so that checks of agreement pass.
/// \returns the error of `fn`, or the poison of its context.
absl::Status RunFake(const FakeOptions& options,
                     absl::FunctionRef<absl::Status(World&)> fn);

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_WORLD_H_
