// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_EXECUTOR_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_EXECUTOR_H_

/// \file
/// Executes redistribution plans on local tensors.
///
/// A step that communicates is one collective on the current stream, directly
/// from the source's memory to the destination's: boxes become segments, so
/// nothing is packed, whatever the strides. A step that does not communicate is
/// a view if the destination is part of the source.

#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "crosshatch/comm/collective.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/dtensor/redistribution/cross_mesh_plan.h"
#include "crosshatch/dtensor/redistribution/plan.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/stream.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Appends the elements of `box`, relative to the first element of the local
/// tensor `t`, in row-major order of the box. Appends as few segments as the
/// strides allow: one if the box is a run of runs, otherwise one for each index
/// of the outer dims. The addresses are null if `t` has no memory.
/// \pre box is within t.sizes(); 0 <= strides
void AppendSegments(const Tensor& t, const Box& box, SegmentList& segments);

/// Returns the segments of one box.
SegmentList SegmentsOf(const Tensor& t, const Box& box);

/// Issues `collective` to the current stream, between the ranks that differ
/// from this one in `axes` only (DeviceMesh::communicator). An error poisons
/// the rank.
void IssueAlong(absl::Span<const int> axes, const DeviceMesh& mesh,
                Collective collective);

/// A plan with this rank's transfers. A value that does not depend on any
/// tensor's memory.
struct PreparedPlan {
  struct Step {
    TransferBoxes boxes;
    /// The sizes of this rank's destination shard.
    Shape sizes;
    /// The name of the step in errors and logs.
    std::string label;
  };

  RedistributePlan plan;
  /// One for each of plan.steps.
  std::vector<Step> steps;
  /// Whether this rank's shard is unchanged: the layouts differ in name only.
  bool stays = false;
  /// Whether some rank's result is a part of its source's memory, and not the
  /// whole on all ranks. A write to it would reach only some replicas of the
  /// source.
  bool shares_memory = false;
};

/// \pre the rank at `coordinate` is the one that will execute it.
PreparedPlan Prepare(RedistributePlan plan, ShapeView global_shape,
                     absl::Span<const int> coordinate);

/// Plans and prepares a redistribution of a tensor of `dtype`. Checks that the
/// layouts match each other and the shape.
PreparedPlan Prepare(const Layout& from, const Layout& to,
                     ShapeView global_shape, DType dtype,
                     absl::Span<const int> coordinate);

/// Returns the local part of the result, given that of the source. May alias
/// `local`, which is never written. Communication errors poison the rank.
Tensor Execute(const PreparedPlan& plan, const Tensor& local,
               const DeviceMesh& mesh);

/// As above on the side stream "redistribute", for memory of the current
/// stream. Users of the result first wait for `done`, which is a past event if
/// nothing is communicated. Result and source may be dropped before.
Tensor ExecuteAsync(const PreparedPlan& plan, const Tensor& local,
                    const DeviceMesh& mesh, Event& done);

/// As PreparedPlan, between meshes: `reduce` on a rank of the source's mesh,
/// `finish` on a rank of the destination's.
struct PreparedCrossMeshPlan {
  CrossMeshPlan plan;
  std::optional<PreparedPlan> reduce;
  CrossMeshTransfers transfers;
  /// The sizes of this rank's part of plan.destination(), on a rank of its
  /// mesh.
  Shape sizes;
  std::optional<PreparedPlan> finish;
  /// Whether the result may share the source's memory.
  bool shares_memory = false;
  std::string group;
  std::string label;
};

/// Prepares the plan for `world_rank`, one of plan.ranks.
PreparedCrossMeshPlan PrepareCrossMesh(CrossMeshPlan plan,
                                       ShapeView global_shape, int world_rank);

/// Returns the local part of the result; undefined on a rank outside the
/// destination's mesh. May alias `local`, which is never written, and undefined
/// on a rank outside the source's mesh.
Tensor ExecuteCrossMesh(const PreparedCrossMeshPlan& plan, const Tensor& local,
                        DType dtype, const DeviceMesh& from,
                        const DeviceMesh& to);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_EXECUTOR_H_
