// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_EXECUTOR_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_EXECUTOR_H_

/// \file
/// Runs redistribution plans on local tensors.
///
/// A step that communicates is one collective on the current stream, straight
/// from the source's memory to the destination's: boxes become segments, so
/// nothing is packed, whatever the strides. A step that does not is a view
/// where the destination is part of the source.

#include <optional>
#include <string>
#include <vector>

#include "crosshatch/dtensor/redistribution/cross_mesh_plan.h"
#include "crosshatch/dtensor/redistribution/plan.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/stream.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// A plan with this rank's part in it worked out. A value that does not depend
/// on any tensor's memory.
struct PreparedPlan {
  struct Step {
    TransferBoxes boxes;
    /// This rank's destination shard has them.
    Shape sizes;
    /// Names the step in errors and logs.
    std::string label;
  };

  RedistributePlan plan;
  /// One for each of plan.steps.
  std::vector<Step> steps;
  /// This rank's shard stays as it is: the layouts differ in name only.
  bool stays = false;
  /// Some rank's result is a part of its source's memory, and not of all ranks
  /// the whole: a write to it would reach some copies of what it is of.
  bool shares_memory = false;
};

/// \pre the rank at `coordinate` is the one that will run it.
PreparedPlan Prepare(RedistributePlan plan, ShapeView global_shape,
                     absl::Span<const int> coordinate);

/// The local part of the result, given that of the source. May alias `local`,
/// which is never written. Errors of communication poison the rank.
Tensor Execute(const PreparedPlan& plan, const Tensor& local,
               const DeviceMesh& mesh);

/// As above on the side stream "redistribute", for memory of the current
/// stream: whatever uses the result waits for `done` first, which is a past
/// event where nothing is communicated. Result and source may be dropped
/// before.
Tensor ExecuteAsync(const PreparedPlan& plan, const Tensor& local,
                    const DeviceMesh& mesh, Event& done);

/// As PreparedPlan, from one mesh to another: `settle` on a rank of the
/// source's mesh, `finish` on one of the destination's.
struct PreparedCrossMeshPlan {
  CrossMeshPlan plan;
  std::optional<PreparedPlan> settle;
  CrossMeshTransfers transfers;
  /// Of this rank's part of plan.destination(), on a rank of its mesh.
  Shape sizes;
  std::optional<PreparedPlan> finish;
  /// The result may lie in the source's memory.
  bool shares_memory = false;
  std::string group;
  std::string label;
};

/// For the rank `world_rank`, one of plan.ranks.
PreparedCrossMeshPlan PrepareCrossMesh(CrossMeshPlan plan,
                                       ShapeView global_shape, int world_rank);

/// The local part of the result; undefined on a rank that is not on the
/// destination's mesh. May alias `local`, which is undefined on a rank that is
/// not on the source's mesh and never written.
Tensor ExecuteCrossMesh(const PreparedCrossMeshPlan& plan, const Tensor& local,
                        DType dtype, const DeviceMesh& from,
                        const DeviceMesh& to);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_EXECUTOR_H_
