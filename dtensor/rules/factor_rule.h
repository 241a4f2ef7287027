// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_RULES_FACTOR_RULE_H_
#define CROSSHATCH_DTENSOR_RULES_FACTOR_RULE_H_

/// \file
/// Sharding rules by factors, the form of nearly every op's rule.
///
/// The dims of an op's inputs and outputs consist of a few *factors*, like the
/// letters of an einsum. A matmul "mk, kn -> mn" has the factors m, k and n. An
/// op may run on shards of a factor, with each mesh axis splitting at most one:
/// every dim of the factor is then split in the same way, and an output without
/// the factor is partial. The solver selects the split of each factor.
///
/// - If the inputs agree (the inputs that split a factor split it in one way,
///   and no axis splits two factors), it selects that split. An input that
///   holds more than its shard is sliced, without communication.
/// - If they do not agree, it selects the split for which the inputs move the
///   fewest bytes.
/// - Pending reductions of inputs stay pending in the outputs if the op is
///   linear in them. Otherwise they are performed before the op.

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "crosshatch/base/reduce_op.h"
#include "crosshatch/dtensor/rules/op_rule.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch {

/// A factor of a dim, with `width` elements of the dim for each of the factor.
/// A dim of no factor (-1) is not split.
struct DimFactor {
  int factor = -1;
  int64_t width = 1;
};
using DimFactors = absl::InlinedVector<DimFactor, 5>;

struct Factor {
  /// The number of elements.
  int64_t size = 1;
  /// Whether it must not be split.
  bool whole = false;
  /// The reduction that completes the outputs without the factor.
  ReduceOp op = ReduceOp::kSum;
};

/// The treatment of inputs with pending reductions.
enum class Linearity : uint8_t {
  /// They are reduced first.
  kNone,
  /// Sums and averages stay pending if all inputs are partial alike: addition.
  kAdditive,
  /// Sums and averages stay pending if just one input is partial:
  /// multiplication.
  kMultilinear,
  /// Any reduction stays pending, if all inputs are partial alike: values are
  /// moved and not changed.
  kMove,
};

/// The first input, for inputs of an op as bits. The next one is kFirstInput <<
/// 1.
inline constexpr uint32_t kFirstInput = 1;

struct FactorRule {
  struct Output {
    DimFactors dims;
    /// Global.
    Shape sizes;
  };

  absl::InlinedVector<Factor, 6> factors;
  absl::InlinedVector<DimFactors, 3> inputs;
  absl::InlinedVector<Output, 1> outputs;
  Linearity linearity = Linearity::kNone;
  /// For kMultilinear: bit i is set if the op is linear in input i.
  uint32_t linear_inputs = ~uint32_t{0};
  /// The input, if any, whose layout must not change, because it is written in
  /// place.
  int fixed_input = -1;

  /// Adds a factor and returns its index.
  int Add(int64_t size, bool whole = false, ReduceOp op = ReduceOp::kSum) {
    factors.push_back({size, whole, op});
    return static_cast<int>(factors.size()) - 1;
  }
};

/// Returns the layouts for `call` under `rule`. Sets neither local_op nor
/// program.
RuleResult SolveFactors(const RuleCall& call, const FactorRule& rule);

/// Returns the rule of ops that work element by element on inputs that
/// broadcast. The output has their common shape.
FactorRule PointwiseFactors(const RuleCall& call, Linearity linearity);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_RULES_FACTOR_RULE_H_
