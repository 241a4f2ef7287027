// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_DISPATCH_DISPATCH_PLAN_H_
#define CROSSHATCH_DTENSOR_DISPATCH_DISPATCH_PLAN_H_

/// \file
/// What is kept of a rule's answer to one call.

#include <memory>

#include "absl/container/inlined_vector.h"
#include "crosshatch/dtensor/redistribution/executor.h"
#include "crosshatch/dtensor/rules/op_rule.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch {

struct InternedLayout;

struct DispatchPlan {
  struct Output {
    const InternedLayout* layout;
    Shape sizes;
    Shape local_sizes;
  };

  /// How each input is brought where it is wanted; null for one that is taken
  /// as it lies.
  absl::InlinedVector<std::unique_ptr<PreparedPlan>, 3> redistribute;
  /// Some entry of `redistribute` is not null.
  bool redistributes = false;
  absl::InlinedVector<Output, 2> outputs;
  std::unique_ptr<Op> local_op;
  std::unique_ptr<LocalProgram> program;
  bool in_place = false;
  bool view = false;
  /// Of some rank the part of input 0 is another than it holds.
  bool moves_first = false;
  /// The part of input 0 comes by communication, on every rank.
  bool moves_apart = false;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_DISPATCH_DISPATCH_PLAN_H_
