// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_OPTIONS_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_OPTIONS_H_

#include <cstdint>
#include <optional>

#include "crosshatch/dtensor/redistribution/cost.h"
#include "crosshatch/tensor/dtype.h"

namespace crosshatch {

struct RedistributeOptions {
  /// Communicates on a side stream of its own ("redistribute"), which starts
  /// after what was issued to the current one. The call returns at once; the
  /// first op that touches the result on a stream makes that stream wait, and
  /// until then the current stream goes on beside it. The result may be dropped
  /// unused, and the tensor redistributed may be dropped, but must not be
  /// written in place before the result was used. A plan that does not
  /// communicate is just run. The gradient comes back on the backward pass' own
  /// stream, as always.
  bool async = false;
  /// What the tensor is cast to before anything moves, and the dtype of the
  /// result; by default its own.
  std::optional<DType> forward_dtype = std::nullopt;
  /// What the gradient is cast to before it moves back; by default the dtype of
  /// the tensor, which is what it is cast to in the end.
  std::optional<DType> backward_dtype = std::nullopt;
  /// By what the planner weighs plans, the gradient's too; by default all mesh
  /// axes are equal. Made for the tensor's mesh: kInvalidArgument poisons the
  /// rank where it is not.
  std::optional<RedistributeCostModel> cost = std::nullopt;
  /// The most elements that a rank may hold at once, source and result included
  /// (RedistributePlan::peak_elements); not for the gradient, whose way may
  /// need more. Where no plan keeps to it, nothing is communicated and
  /// kResourceExhausted poisons every rank of the mesh: the plan is the same on
  /// all. Ask PlanRedistribute first where that may be.
  std::optional<int64_t> max_elements = std::nullopt;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_OPTIONS_H_
