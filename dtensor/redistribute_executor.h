// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTE_EXECUTOR_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTE_EXECUTOR_H_

/// \file
/// Runs redistribution plans on local tensors.
///
/// A step that communicates is one collective on the current stream, straight
/// from the source's memory to the destination's: boxes become segments, so
/// nothing is packed, whatever the strides. A step that does not is a view
/// where the destination is part of the source.

#include <string>
#include <vector>

#include "crosshatch/dtensor/redistribute_plan.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// A plan with this rank's part in it worked out. A value that does not depend
/// on any tensor's memory.
struct PreparedPlan {
  struct Step {
    TransferBoxes boxes;
    /// Of this rank's destination shard.
    Shape sizes;
    /// Names the step in errors and logs.
    std::string label;
  };

  RedistributePlan plan;
  /// One for each of plan.steps.
  std::vector<Step> steps;
  /// This rank's shard stays as it is: the layouts differ in name only.
  bool stays = false;
};

/// \pre the rank at `coordinate` is the one that will run it.
PreparedPlan Prepare(RedistributePlan plan, ShapeView global_shape,
                     absl::Span<const int> coordinate);

/// The local part of the result, given that of the source. May alias `local`,
/// which is never written. Errors of communication poison the rank.
Tensor Execute(const PreparedPlan& plan, const Tensor& local,
               const DeviceMesh& mesh);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTE_EXECUTOR_H_
