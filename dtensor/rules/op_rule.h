// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_RULES_OP_RULE_H_
#define CROSSHATCH_DTENSOR_RULES_OP_RULE_H_

/// \file
/// Sharding rules: how an op on distributed tensors becomes an op on local
/// ones.
///
/// A rule is called once for each distinct call (op, attributes, layouts and
/// global sizes of the inputs); its result is cached. It returns the layouts
/// that the inputs must have, the layouts of the outputs, and what to run on
/// the local tensors. Its result depends only on what all ranks share, so that
/// all ranks decide alike. Only `local_op` may depend on the rank's coordinate.
///
/// An invalid call (sizes that do not fit, a view that no layout can express)
/// fails a check in the rule, naming the op and its inputs.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "crosshatch/base/reduce_op.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch {

struct RuleInput {
  /// A plain tensor counts as replicated. An undefined one (an optional input
  /// that is absent) counts as a plain tensor of no dims.
  Layout layout;
  /// Global.
  Shape sizes;
  DType dtype = kFloat32;
  bool plain = false;
  bool defined = true;
};

struct RuleCall {
  const Op& op;
  absl::Span<const RuleInput> inputs;
  const MeshLayout& mesh;
  /// This rank's coordinate on the mesh.
  const MeshCoordinate& coordinate;
};

/// Replaces the one local op if an op needs several, or communication in
/// between.
/// \param locals the local parts of the inputs, in the layouts that the rule
///     chose.
/// \returns the local parts of the outputs.
using LocalProgram = std::function<TensorList(const Op& op, TensorSpan locals,
                                              const DeviceMesh& mesh)>;

struct RuleResult {
  struct Output {
    Layout layout;
    /// Global.
    Shape sizes;
  };

  /// One for each input. Inputs in other layouts are redistributed.
  absl::InlinedVector<Layout, 3> inputs;
  /// One for each output. Output 0 of an in-place op is input 0, whose layout
  /// must not change.
  absl::InlinedVector<Output, 1> outputs;
  /// Runs on the local parts in place of the op itself, if the op's attributes
  /// depend on local sizes or offsets. Null: the op itself.
  std::unique_ptr<Op> local_op;
  /// Runs in place of an op, if not null.
  LocalProgram program;
};

using OpRule = std::function<RuleResult(const RuleCall&)>;

/// A rule, and the plain tensors that it accepts among distributed ones.
struct OpRuleEntry {
  OpRule rule;
  /// Bit i: input i may be a plain tensor. It must not require a gradient and
  /// is assumed to be equal on all ranks of the mesh, like ids, targets and
  /// constant tables. Tensors of no dims are always accepted.
  uint32_t plain_inputs = 0;
};

/// \name Rules by factors
/// The form of nearly every op's rule.
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
/// @{

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
  int Add(int64_t size, ReduceOp op = ReduceOp::kSum) {
    factors.push_back({size, op});
    return static_cast<int>(factors.size()) - 1;
  }
  /// Adds a factor for each dim.
  DimFactors AddAll(ShapeView sizes) {
    DimFactors dims;
    for (int64_t size : sizes) dims.push_back({Add(size)});
    return dims;
  }
};

/// Returns the rule of a specification like that of an einsum: the dims of the
/// inputs, then those of the outputs, as in "...mk,...kn->...mn" for a matmul.
///
/// - A lower-case letter is a factor.
/// - An upper-case letter is a dim that is not split; so is each `_`.
/// - `...` stands for the remaining dims, each a factor of its own. They
///   broadcast as in NumPy: a dim of one element among larger ones is not
///   split.
///
/// An undefined input has no dims, whatever is specified.
/// \param new_sizes the sizes of the outputs' dims that no input has, in order.
FactorRule Einsum(const RuleCall& call, absl::string_view specification,
                  ShapeView new_sizes = {});

/// Returns the rule of ops that work element by element on inputs that
/// broadcast. The output has their common shape.
FactorRule PointwiseFactors(const RuleCall& call, Linearity linearity);

/// Returns the layouts for `call` under `rule`. Sets neither local_op nor
/// program.
RuleResult SolveFactors(const RuleCall& call, const FactorRule& rule);

/// Returns the OpRule of an einsum whose outputs have dims of inputs only.
OpRule EinsumRule(absl::string_view specification,
                  Linearity linearity = Linearity::kNone,
                  uint32_t linear_inputs = ~uint32_t{0});
/// @}

/// Returns "add(f32[2, 3]|[S(0),R], f32[3] plain)", for messages.
std::string DescribeCall(const RuleCall& call);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_RULES_OP_RULE_H_
