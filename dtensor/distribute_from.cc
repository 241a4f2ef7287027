// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/dtensor/boundary_ops.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/dtensor/redistribution/comm_origin.h"
#include "crosshatch/dtensor/redistribution/runtime.h"
#include "crosshatch/dtensor/redistribution/segments.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

// Returns `layout` with pending reductions replaced by Replicate.
Layout WithoutPartials(Layout layout) {
  for (int axis = 0; axis < layout.mesh().ndim(); ++axis) {
    if (layout.state_of_axis(axis).is_partial()) {
      layout = layout.WithReplicate(axis);
    }
  }
  return layout;
}

// Sends the parts of the source's `full` to each rank's `local`. `source` is
// the source's index among the ranks of the mesh.
absl::Status Scatter(int source, const Tensor& full, const Tensor& local,
                     const DeviceMesh& mesh, const Layout& layout) {
  Stream& stream = RankContext::Current().current_stream();
  CH_ASSIGN_OR_RETURN(Communicator * group, MeshCommunicator(mesh));
  const bool sends = group->rank() == source;
  Collective collective;
  collective.dtype = full.dtype();
  collective.label = "DistributeTensorFrom";
  const SegmentList mine = SegmentsOf(local, WholeBox(local.sizes()));
  if (layout.is_replicated()) {
    collective.kind = CollectiveKind::kBroadcast;
    collective.root = source;
    if (sends) {
      collective.send.push_back(SegmentsOf(full, WholeBox(full.sizes())));
    }
    collective.recv.push_back(mine);
    return group->Issue(std::move(collective), stream);
  }
  collective.kind = CollectiveKind::kAllToAll;
  collective.send.resize(group->size());
  collective.recv.resize(group->size());
  collective.recv[source] = mine;
  if (sends) {
    for (int rank = 0; rank < group->size(); ++rank) {
      collective.send[rank] = SegmentsOf(
          full,
          layout.LocalBox(full.sizes(), mesh.layout().CoordinateAt(rank)));
    }
  }
  return group->Issue(std::move(collective), stream);
}

}  // namespace

Tensor DistributeTensorFrom(int source_rank, const Tensor& full,
                            const DeviceMesh& mesh, const Layout& layout) {
  CH_CHECK(!full.is_distributed())
      << "DistributeTensorFrom: " << full.Describe()
      << " is distributed already";
  const auto ranks = mesh.layout().ranks();
  const auto found = std::find(ranks.begin(), ranks.end(), source_rank);
  CH_CHECK(found != ranks.end()) << "DistributeTensorFrom: rank " << source_rank
                                 << " is not on " << mesh.ToString();
  const bool requires_grad = full.requires_grad();
  NoGrad no_grad;
  const Layout plain = WithoutPartials(layout);
  DTensorRuntime& runtime = DTensorRuntime::Current();
  const Tensor local = Empty(
      plain.LocalShape(full.sizes(), runtime.Intern(plain).here), full.dtype());
  {
    const CommOriginScope origin(
        {CommOrigin::Kind::kExplicit, "distribute_tensor"});
    // A collective reads each element of memory once.
    const Tensor sent =
        Repeats(full.sizes(), full.strides()) ? Clone(full) : full;
    absl::Status status = Scatter(static_cast<int>(found - ranks.begin()), sent,
                                  local, mesh, plain);
    if (!status.ok()) RankContext::Current().Poison(std::move(status));
  }
  Tensor spread =
      Redistribute(MakeDTensor(local, mesh, plain, full.sizes()), layout);
  if (requires_grad) spread.set_requires_grad(true);
  return spread;
}

Tensor DistributeTensorFrom(int source_rank, const Tensor& full,
                            const DeviceMesh& mesh,
                            absl::Span<const Placement> placements) {
  return DistributeTensorFrom(
      source_rank, full, mesh,
      LayoutBy("DistributeTensorFrom", placements, mesh, full.ndim()));
}

}  // namespace crosshatch
