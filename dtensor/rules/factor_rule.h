// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_RULES_FACTOR_RULE_H_
#define CROSSHATCH_DTENSOR_RULES_FACTOR_RULE_H_

/// \file
/// Sharding rules by factors: the form in which nearly every op is written.
///
/// The dims of an op's inputs and outputs are made of a few *factors*, as the
/// letters of an einsum. A matmul "mk, kn -> mn" has the factors m, k and n. An
/// op may be run on shards of a factor, each mesh axis splitting at most one:
/// every dim made of the factor is then split alike, and an output that lacks
/// the factor is partial. The solver picks the split of each factor.
///
/// - Where the inputs agree (each factor is split one way by those inputs that
///   split it, and no axis splits two factors), that split is taken; an input
///   that holds more than its shard is sliced, which moves nothing.
/// - Where they do not, the split for which the inputs move the fewest bytes.
/// - Pending reductions of inputs stay pending in the outputs where the op is
///   linear in them, and are done before the op otherwise.

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "crosshatch/base/reduce_op.h"
#include "crosshatch/dtensor/rules/op_rule.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch {

/// What a dim is made of: `factor`, `width` elements of the dim to each of the
/// factor. A dim of no factor (-1) is whole on every rank.
struct DimFactor {
  int factor = -1;
  int64_t width = 1;
};
using DimFactors = absl::InlinedVector<DimFactor, 5>;

struct Factor {
  /// The number of elements.
  int64_t size = 1;
  /// May not be split.
  bool whole = false;
  /// What makes the outputs that lack it one again.
  ReduceOp op = ReduceOp::kSum;
};

/// What becomes of inputs whose reductions are pending.
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

/// The first input, where inputs of an op are given as bits; the next one is
/// kFirstInput << 1.
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
  /// kMultilinear: bit i: linear in input i.
  uint32_t linear_inputs = ~uint32_t{0};
  /// The input, if any, whose layout must stay: it is written in place.
  int fixed_input = -1;

  /// Adds a factor and returns its index.
  int Add(int64_t size, bool whole = false, ReduceOp op = ReduceOp::kSum) {
    factors.push_back({size, whole, op});
    return static_cast<int>(factors.size()) - 1;
  }
};

/// The layouts for `call` under `rule`. Sets neither local_op nor program.
RuleResult SolveFactors(const RuleCall& call, const FactorRule& rule);

/// The rule of ops that work element by element on inputs that broadcast; the
/// output has their common shape.
FactorRule PointwiseFactors(const RuleCall& call, Linearity linearity);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_RULES_FACTOR_RULE_H_
