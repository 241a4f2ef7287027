// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_OP_RULE_CHECK_H_
#define CROSSHATCH_DTENSOR_OP_RULE_CHECK_H_

/// \file
/// Compares ops on distributed tensors with the same ops on plain ones, to test
/// sharding rules of Crosshatch's ops and of a user's (docs/write_an_op.md). A
/// difference is a GoogleTest failure that names the case and the layouts of
/// its inputs.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
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
  /// Whether pending sums of this input are tried, too. Never for ids.
  bool sums = true;
};

/// A tolerance for results that are rounded.
inline constexpr double kRounding = 2e-5;

/// A call of an op.
struct RuleCase {
  const char* name;
  std::vector<CaseInput> inputs = {};
  /// Calls the op. If the result requires a gradient, the gradients of all
  /// inputs but ids are compared, too.
  std::function<Tensor(TensorSpan)> run = nullptr;
  /// Returns whether the op accepts inputs in these layouts; null if it accepts
  /// all. Other tests cover what it rejects.
  std::function<bool(absl::Span<const Layout>)> takes = nullptr;
  /// Elements may differ by this times the larger of 1 and their magnitude. By
  /// default kRounding if an input is kFraction or kPositive, otherwise 0,
  /// because all arithmetic is on small whole numbers.
  std::optional<double> tolerance = std::nullopt;
};

struct RuleFamily {
  const char* name;
  std::vector<RuleCase> cases = {};
  /// Whether gradients of gradients are compared, too.
  bool twice = false;
  /// Runs first, on each rank, to register the rules of a user's ops.
  std::function<void()> on_each_rank = nullptr;
};

/// Counts of what a check covered.
struct RuleTally {
  /// Ops that were dispatched, including those of backward.
  absl::flat_hash_set<const OpInfo*> ops;
  /// Calls of these ops that differ in op, attributes, layouts or sizes.
  int64_t calls = 0;
  /// Cases times layouts of their inputs.
  int64_t combinations = 0;

  void Add(const RuleTally& other);
};

/// The layouts that are tried for inputs.
struct RuleLayouts {
  /// Pending reductions of the inputs that have any.
  std::vector<ReduceOp> reductions = {ReduceOp::kSum};
  /// The unit of all dims that are split.
  int64_t unit = 1;
};

/// Runs the cases on a mesh of that shape with their inputs in all combinations
/// of layouts that RuleCase::takes accepts. If a case has more than `most`
/// combinations, it runs on that many, evenly selected. The gradient of the
/// result is passed in every layout in turn, independent of the result's own.
/// Expects the results and gradients of plain tensors, and gradients in the
/// layouts of their leaves. Starts the ranks itself.
RuleTally CheckRules(const std::vector<int>& mesh_shape,
                     const RuleFamily& family,
                     size_t most = static_cast<size_t>(-1),
                     const RuleLayouts& tried = {});

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_OP_RULE_CHECK_H_
