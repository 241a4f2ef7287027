// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_OPTIONS_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_OPTIONS_H_

#include <cstdint>
#include <optional>

#include "crosshatch/dtensor/redistribution/cost.h"
#include "crosshatch/tensor/dtype.h"

namespace crosshatch {

struct RedistributeOptions {
  /// Communicates on a side stream ("redistribute"), which starts after what
  /// was issued to the current one. The call returns at once. The first op that
  /// uses the result on a stream makes that stream wait; until then the current
  /// stream continues in parallel. Result and source may be dropped, but the
  /// source must not be written in place before the result is used. A plan that
  /// does not communicate runs inline. The gradient is redistributed on the
  /// backward pass' own stream.
  bool async = false;
  /// The dtype that the tensor is cast to before it moves, and that of the
  /// result; by default its own.
  std::optional<DType> forward_dtype = std::nullopt;
  /// The dtype that the gradient is cast to before it moves back; by default
  /// the dtype of the tensor, to which it is cast in the end.
  std::optional<DType> backward_dtype = std::nullopt;
  /// The cost model of the planner, for the gradient, too; by default all mesh
  /// axes are equal. It must match the tensor's mesh; otherwise
  /// kInvalidArgument poisons the rank.
  std::optional<RedistributeCostModel> cost = std::nullopt;
  /// The maximum of elements that a rank may hold at once, including source and
  /// result (RedistributePlan::peak_elements). Does not apply to the gradient,
  /// whose plan may need more. If no plan satisfies it, nothing is communicated
  /// and kResourceExhausted poisons every rank of the mesh, because the plan is
  /// the same on all. To test beforehand, call PlanRedistribute.
  std::optional<int64_t> max_elements = std::nullopt;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_OPTIONS_H_
