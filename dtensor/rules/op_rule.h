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
#include "absl/types/span.h"
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
class LocalProgram {
 public:
  virtual ~LocalProgram() = default;
  /// \param locals the local parts of the inputs, in the layouts that the rule
  ///     chose.
  /// \returns the local parts of the outputs.
  virtual TensorList Run(const Op& op, TensorSpan locals,
                         const DeviceMesh& mesh) const = 0;
};

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
  std::unique_ptr<LocalProgram> program;
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

/// Returns "add(f32[2, 3]|[S(0),R], f32[3] plain)", for messages.
std::string DescribeCall(const RuleCall& call);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_RULES_OP_RULE_H_
