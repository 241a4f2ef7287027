// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_GROUP_CORE_H_
#define CROSSHATCH_FSDP_GROUP_CORE_H_

/// \file
/// GroupCore: the description of a parameter group, shared by ParamGroup
/// (parameters) and GroupGradients (gradients).

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/fsdp/comm_context.h"
#include "crosshatch/fsdp/custom_comm.h"
#include "crosshatch/fsdp/group_plan.h"
#include "crosshatch/fsdp/shard_extension.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/parameter.h"
#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/storage.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::fsdp {

struct GroupMember {
  std::shared_ptr<nn::Parameter> parameter;
  std::shared_ptr<const ForwardForm> form;
  ShardedForm sharded_form;
  Tensor unsharded;  ///< What forward computes with.
  /// Parameter::data(), unless the program has replaced it.
  Tensor sharded;
};

/// The description of a group on one rank.
struct GroupCore {
  std::string name;
  /// Text that errors of the group's collectives add to its name: the
  /// parameters, and what to do if ranks use different ones.
  std::shared_ptr<const std::string> about;
  GroupPlan plan;
  std::vector<GroupMember> members;
  /// 1-D, or (replicate, shard). Owns the communicators.
  DeviceMesh mesh;
  /// The number of ranks that the batch is split over: the default divisor of
  /// gradients.
  int batch_ranks;
  int shard_rank;
  DType shard_dtype;
  DType param_dtype;
  DType reduce_dtype;
  /// Whether shards and their gradients are in host memory.
  bool offloaded;
  std::shared_ptr<const CustomComm> custom =
      std::make_shared<const CustomComm>();
  /// The context of the group's tree; null before the group has joined one.
  std::shared_ptr<CommContext> comm;

  /// Whether gathers and reductions are copies within the rank, issued to
  /// compute. A side stream would only add handovers between threads.
  bool stays_on_compute() const { return mesh.size() == 1 && !offloaded; }
  Stream& GatherStream() const {
    return stays_on_compute() ? comm->compute() : comm->all_gather();
  }
  Stream& ReduceStream() const {
    return stays_on_compute() ? comm->compute() : comm->reduce_scatter();
  }

  /// \name Names of these streams
  /// A communicator belongs to one stream, so groups on compute use other
  /// communicators.
  /// @{
  const char* gather_stream_name() const {
    return stays_on_compute() ? kComputeStream : kAllGatherStream;
  }
  const char* reduce_stream_name() const {
    return stays_on_compute() ? kComputeStream : kReduceScatterStream;
  }
  /// @}

  int shard_axis() const { return mesh.ndim() - 1; }
  bool replicated() const { return mesh.ndim() == 2; }
  int64_t shard_elems() const { return plan.shard_elems(shard_rank); }

  /// Returns the allocator of shards and their gradients.
  Allocator& ShardMemory(RankContext& context) const {
    return offloaded ? context.host_allocator() : context.allocator();
  }
  /// Returns a view of a whole shard buffer of this rank.
  Tensor ShardView(const std::shared_ptr<Storage>& storage, DType dtype) const {
    return MakeView(storage, 0, {shard_elems()}, {1}, dtype);
  }
  /// Returns a view of parameter i in a shard buffer of this rank.
  Tensor ShardOf(int i, const std::shared_ptr<Storage>& storage,
                 DType dtype) const {
    const Shape shape = plan.ShardShape(i, shard_rank);
    return MakeView(storage, plan.shard_offset(i, shard_rank), shape,
                    ContiguousStrides(shape), dtype);
  }

  /// Issues `collective`, by `issue` if it is set. Its error poisons the rank
  /// and aborts the communicator's group.
  /// \param what the member of CustomComm, for messages.
  void Issue(const CustomComm::Issue& issue, const char* what,
             Communicator& communicator, Collective collective,
             Stream& stream) const {
    if (!issue) {
      CH_CHECK_OK(communicator.Issue(std::move(collective), stream));
      return;
    }
    const absl::Status status =
        issue(communicator, std::move(collective), stream);
    if (status.ok()) return;
    const absl::Status error(
        status.code(),
        absl::StrCat("CustomComm::", what, " of the FSDP group ", name,
                     " on rank ", comm->context().world_rank(), ": ",
                     status.message()));
    comm->context().Poison(error);
    // Peers may be in this collective already.
    communicator.Abort(error);
  }

  void Log(const char* what, int64_t bytes) const {
    if (EventSink* sink = comm->context().sink(); sink != nullptr) {
      sink->Write({.kind = EventKind::kFsdp,
                   .what = what,
                   .subject = &name,
                   .where = nullptr,
                   .bytes = bytes});
    }
  }
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_GROUP_CORE_H_
