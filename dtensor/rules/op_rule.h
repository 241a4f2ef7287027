// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_RULES_OP_RULE_H_
#define CROSSHATCH_DTENSOR_RULES_OP_RULE_H_

/// \file
/// Sharding rules: how an op on distributed tensors becomes an op on local
/// ones.
///
/// A rule is asked once for each distinct call (op, attributes, layouts and
/// global sizes of the inputs; the answer is cached) and says which layouts the
/// inputs must have, which layouts the outputs then have, and what to run on
/// the local parts. Whatever it decides follows from what all ranks share, so
/// that all decide alike; only `local_op` may depend on the rank's place.
///
/// A call that cannot be right (sizes that do not fit, a view that no layout
/// can express) fails a check in the rule, naming the op and its inputs.

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
  /// A plain tensor counts as replicated. So does an undefined one (an optional
  /// input that is not there), as one of no dims.
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
  /// This rank's place on the mesh.
  const MeshCoordinate& coordinate;
};

/// Replaces the one local op where an op needs several, or communication in
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

  /// One for each input. Inputs that lie otherwise are redistributed.
  absl::InlinedVector<Layout, 3> inputs;
  /// One for each output. Output 0 of an in-place op is input 0, which must
  /// keep its layout.
  absl::InlinedVector<Output, 1> outputs;
  /// Runs on the local parts in place of the op itself: an op whose attributes
  /// speak of local sizes or offsets. Null: the op itself.
  std::unique_ptr<Op> local_op;
  /// Not null: runs in place of an op.
  std::unique_ptr<LocalProgram> program;
};

using OpRule = std::function<RuleResult(const RuleCall&)>;

/// A rule and what it says of plain tensors among distributed ones.
struct OpRuleEntry {
  OpRule rule;
  /// Bit i: input i may be a plain tensor. It must hold no gradient and is
  /// taken to be equal on all ranks of the mesh, as ids, targets and constant
  /// tables are. Tensors of no dims always may.
  uint32_t plain_inputs = 0;
};

/// "add(f32[2, 3]|[S(0),R], f32[3] plain)", for messages.
std::string DescribeCall(const RuleCall& call);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_RULES_OP_RULE_H_
