// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_TESTS_OP_RULE_CHECK_H_
#define CROSSHATCH_DTENSOR_TESTS_OP_RULE_CHECK_H_

/// \file
/// Compares ops on distributed tensors with the same ops on plain ones.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "crosshatch/base/reduce_op.h"
#include "crosshatch/dtensor/tests/op_rule_cases.h"

namespace crosshatch {

struct OpInfo;

/// What a check has gone through.
struct RuleTally {
  /// Ops that were dispatched, those of backward included.
  absl::flat_hash_set<const OpInfo*> ops;
  /// Calls of them that differ in op, attributes, layouts or sizes.
  int64_t calls = 0;
  /// Cases times layouts of their inputs.
  int64_t combinations = 0;

  void Add(const RuleTally& other);
};

/// The layouts that inputs are tried in.
struct RuleLayouts {
  /// Pending reductions, of inputs that have any.
  std::vector<ReduceOp> reductions = {ReduceOp::kSum};
  /// Of all dims that are split.
  int64_t unit = 1;
};

/// Runs the cases on a mesh of that shape with their inputs in all combinations
/// of layouts, or in at most `most` of them, evenly picked, for each case.
/// Expects results and gradients to be those of plain tensors, and gradients to
/// lie as their leaves do.
RuleTally CheckRules(const std::vector<int>& mesh_shape,
                     const RuleFamily& family,
                     size_t most = static_cast<size_t>(-1),
                     const RuleLayouts& tried = {});

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_TESTS_OP_RULE_CHECK_H_
