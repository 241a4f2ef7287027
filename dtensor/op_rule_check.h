// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_OP_RULE_CHECK_H_
#define CROSSHATCH_DTENSOR_OP_RULE_CHECK_H_

/// \file
/// Compares ops on distributed tensors with the same ops on plain ones: whether
/// a sharding rule is right, for Crosshatch's ops and for a user's
/// (docs/write_an_op.md). For tests: what is wrong is a failure of GoogleTest
/// that names the case and the layouts of its inputs.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "crosshatch/base/reduce_op.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/tensor/shape.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

struct OpInfo;

struct CaseInput {
  enum Kind {
    kWhole,     ///< Small whole numbers: sums of products of them are exact.
    kFraction,  ///< Between -1 and 1.
    kPositive,  ///< Between 0.5 and 2.5.
    kIds,       ///< i64, below `ids`.
  };
  Shape sizes = {};
  Kind kind = kWhole;
  int ids = 0;
  /// Whether it is tried with pending sums too. Never of ids.
  bool sums = true;
};

/// A call of an op.
struct RuleCase {
  const char* name;
  std::vector<CaseInput> inputs = {};
  /// Calls the op. Of inputs that are not ids gradients are compared too, if
  /// the result has any.
  std::function<Tensor(TensorSpan)> run = nullptr;
  /// 0 where all arithmetic is on small whole numbers. Elements may differ by
  /// it times the larger of 1 and their size.
  double tolerance = 0;
  /// Whether the op can be done on inputs in these layouts; null where it can
  /// in all. What it refuses other tests check.
  std::function<bool(absl::Span<const Layout>)> takes = nullptr;
};

/// A tolerance where results are rounded.
inline constexpr double kRounding = 2e-5;

struct RuleFamily {
  const char* name;
  std::vector<RuleCase> cases = {};
  /// Gradients of gradients are compared too.
  bool twice = false;
  /// Runs first, on each rank: registers the rules of a user's ops.
  std::function<void()> on_each_rank = nullptr;
};

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
/// of layouts that RuleCase::takes admits, or for each case in `most` of them
/// where there are more, evenly picked.
/// The gradient of the result comes back in every layout in turn, whatever that
/// of the result is. Expects results and gradients to be those of plain
/// tensors, and gradients to lie as their leaves do. Runs the ranks itself.
RuleTally CheckRules(const std::vector<int>& mesh_shape,
                     const RuleFamily& family,
                     size_t most = static_cast<size_t>(-1),
                     const RuleLayouts& tried = {});

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_OP_RULE_CHECK_H_
