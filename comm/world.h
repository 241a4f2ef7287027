// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_WORLD_H_
#define CROSSHATCH_COMM_WORLD_H_

/// \file
/// World: how a program starts on any engine, and where communicators come
/// from.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "crosshatch/base/event_sink.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/comm/group_key.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {

class ContextDecorator;
class DeviceBackend;
class Engine;

/// One rank's view of the running job. The engine's part is behind it
/// (comm/engine.h).
/// \threadsafety the rank's thread only.
class World final {
 public:
  /// \param engine, context of this rank; both outlive the world.
  World(Engine& engine, RankContext& context)
      : engine_(engine), context_(context) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// "local", "fake".
  const std::string& engine() const;
  /// The engine itself, for one that stands around it: a World can be made of
  /// that (comm/faulty_engine_testutil.h).
  Engine& implementation() const { return engine_; }
  int rank() const { return context_.world_rank(); }
  int size() const { return context_.world_size(); }
  RankContext& context() const { return context_; }
  Device device() const { return context_.device(); }

  /// The communicator of `world_ranks` (this rank among them, in the order of
  /// their indices in the group) for work on stream `stream_name`. Called by
  /// all members; calls with equal arguments give the same communicator.
  /// \param name names the group in errors and counts: the mesh axis, or axes
  ///     joined by ",".
  /// \error kInvalidArgument unless `world_ranks` are different ranks of this
  ///     world, this one among them; what kept the engine from making it.
  absl::StatusOr<std::shared_ptr<Communicator>> Group(
      const std::string& name, std::vector<int> world_ranks,
      const std::string& stream_name);

  /// All communicators made so far, in the order of creation, for counting.
  const std::vector<std::shared_ptr<Communicator>>& groups() const {
    return groups_;
  }

  /// Fails this rank and so the job: all ranks are poisoned and all groups
  /// fail, so that peers fail instead of waiting. `error` must not be OK.
  void Abort(const absl::Status& error);

 private:
  Engine& engine_;
  RankContext& context_;
  std::map<GroupKey, std::shared_ptr<Communicator>> by_key_;
  std::vector<std::shared_ptr<Communicator>> groups_;
};

struct LocalOptions {
  /// Threads of each rank's intra-op pool; 0: cores / ranks, at least 1.
  int threads_per_rank = 0;
  /// Bound on the time a rank may keep the others waiting at a collective; the
  /// run then fails. A rank that does not come back within as long again, and
  /// at least 5 s, after a failure (its thread is caught in an endless loop)
  /// ends the process, with a message that names it, because nothing else can
  /// stop a thread.
  absl::Duration timeout = absl::Minutes(10);
  /// Not 0: adversarial streams (tensor/stream.h).
  uint64_t adversarial_seed = 0;
  /// The device of all ranks (tensor/device_backend.h), whose memory the host
  /// must be able to address; null: the CPU. Outlives the run.
  const DeviceBackend* backend = nullptr;
  /// By rank; empty, or entries may be null. Outlive the run.
  std::vector<EventSink*> sinks;
  /// Of the ranks' streams and memory (tensor/context_decorator.h). By rank;
  /// empty, or entries may be null. Outlive the run.
  std::vector<ContextDecorator*> decorators;
};

/// Runs `fn` on `ranks` threads of this process, one a rank, and returns when
/// all have. An error of one rank aborts the others. Drains all streams of a
/// rank before it counts as finished.
/// \returns OK, or the first failure, not those that it caused elsewhere: a
///     rank's own error, named with the rank, or what went wrong between the
///     members of a group, named with all of them.
absl::Status RunLocal(int ranks, absl::FunctionRef<absl::Status(World&)> fn,
                      const LocalOptions& options = {});

struct FakeOptions {
  int world_size = 1;
  int rank = 0;
  /// The device whose memory is accounted; null: the CPU. Outlives the run.
  const DeviceBackend* backend = nullptr;
  EventSink* sink = nullptr;
};

/// Runs `fn` as one rank of a job of any size, without the others and without
/// computing anything: tensors are on Device::Meta(). Allocations, collectives
/// and changes of state are accounted and logged as in a real run of the same
/// way through the program; one that branches on values, which a dry run does
/// not have, or on what others exchange may take another way.
/// Communicator::Exchange gives this rank's own blob for every member, as if
/// all had said the same, so that checks of agreement pass.
/// \returns the error of `fn`, or the poison of its context.
absl::Status RunFake(const FakeOptions& options,
                     absl::FunctionRef<absl::Status(World&)> fn);

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_WORLD_H_
