// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <memory>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/comm/collective.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/dtensor/redistribution/executor.h"
#include "crosshatch/dtensor/rules/op_rule.h"
#include "crosshatch/dtensor/rules/op_rules.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cross_entropy.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"

namespace crosshatch {
namespace {

// Issues one all-reduce, in place, of all `tensors`.
void Reduce(TensorSpan tensors, ReduceOp op, absl::Span<const int> axes,
            const DeviceMesh& mesh) {
  Collective collective;
  collective.kind = CollectiveKind::kAllReduce;
  collective.dtype = tensors[0].dtype();
  collective.reduce_op = op;
  collective.label = "cross_entropy";
  SegmentList segments;
  for (const Tensor& t : tensors) {
    AppendSegments(t, WholeBox(t.sizes()), segments);
  }
  collective.send = {segments};
  collective.recv = {std::move(segments)};
  IssueAlong(axes, mesh, std::move(collective));
}

// Returns whether a target of `dtype` can be `value`.
bool Holds(DType dtype, int64_t value) {
  switch (dtype) {
    case kUInt16:
      return value >= 0 && value <= std::numeric_limits<uint16_t>::max();
    case kInt32:
      return value >= std::numeric_limits<int32_t>::min() &&
             value <= std::numeric_limits<int32_t>::max();
    default:
      return true;
  }
}

// Cross entropy of logits whose classes are split. The ranks exchange three
// numbers for each row instead of the logits.
class ClassParallelCrossEntropy {
 public:
  ClassParallelCrossEntropy(absl::Span<const int> axes, int64_t first_class,
                            int64_t classes)
      : axes_(axes.begin(), axes.end()),
        first_class_(first_class),
        classes_(classes) {}

  TensorList operator()(const Op& op, TensorSpan locals,
                        const DeviceMesh& mesh) const {
    const auto& whole = static_cast<const CrossEntropyOp&>(op);
    const Tensor& logits = locals[0];
    const Tensor& targets = locals[1];
    const DType dtype = StatisticsDType(logits.dtype());

    const Shape last = {logits.ndim() - 1};
    TensorList row_max =
        ReductionOp(ReduceKind::kMax, last, /*keepdim=*/false, dtype)
            .Forward({logits});
    if (row_max[0].numel() > 0) Reduce(row_max, ReduceOp::kMax, axes_, mesh);
    TensorList parts =
        CrossEntropyPartOp(whole.ignore_index, first_class_, classes_)
            .Forward({logits, targets, row_max[0]});
    if (row_max[0].numel() > 0) Reduce(parts, ReduceOp::kSum, axes_, mesh);

    Tensor logsumexp = UnaryPointwiseOp(UnaryOp::kLog).Forward({parts[0]})[0];
    AddInPlaceOp(1).Forward({logsumexp, row_max[0]});
    const Tensor loss =
        BinaryPointwiseOp(BinaryOp::kSub).Forward({logsumexp, parts[1]})[0];
    if (!Holds(targets.dtype(), whole.ignore_index)) {
      return {loss, std::move(logsumexp)};
    }
    const Tensor ignored =
        BinaryPointwiseOp(BinaryOp::kEqual)
            .Forward({targets, Full({}, static_cast<double>(whole.ignore_index),
                                    targets.dtype())})[0];
    return {WhereOp().Forward({ignored, Full({}, 0, dtype), loss})[0],
            std::move(logsumexp)};
  }

 private:
  const absl::InlinedVector<int, 2> axes_;
  const int64_t first_class_;
  const int64_t classes_;
};

int64_t FirstClass(const RuleCall& call, const Layout& logits,
                   int64_t classes) {
  return logits.DimInterval(logits.ndim() - 1, classes, call.coordinate).begin;
}

RuleResult CrossEntropyRule(const RuleCall& call) {
  const Shape& logits = call.inputs[0].sizes;
  CH_CHECK(!logits.empty()) << DescribeCall(call);
  const Shape rows(logits.begin(), logits.end() - 1);
  CH_CHECK(call.inputs[1].sizes == rows)
      << DescribeCall(call) << ": logits [..., classes] go with targets "
      << ToString(rows) << ", not " << ToString(call.inputs[1].sizes);
  CH_CHECK(!IsFloatingPoint(call.inputs[1].dtype))
      << DescribeCall(call) << ": targets are integers, not "
      << call.inputs[1].dtype;
  RuleResult result = SolveFactors(call, Einsum(call, "...c,...->...,..."));
  const Layout& layout = result.inputs[0];
  const absl::Span<const int> axes = layout.axes_of_dim(layout.ndim() - 1);
  if (axes.empty()) return result;
  result.program = ClassParallelCrossEntropy(
      axes, FirstClass(call, layout, logits.back()), logits.back());
  for (RuleResult::Output& output : result.outputs) {
    for (int axis : axes) output.layout = output.layout.WithReplicate(axis);
  }
  return result;
}

RuleResult CrossEntropyBackwardRule(const RuleCall& call) {
  const auto& op = static_cast<const CrossEntropyBackwardOp&>(call.op);
  FactorRule rule = Einsum(call, "...,...c,...,...->...c");
  rule.linearity = Linearity::kMultilinear;
  rule.linear_inputs = kFirstInput;
  RuleResult result = SolveFactors(call, rule);
  if (result.inputs[1].is_sharded(result.inputs[1].ndim() - 1)) {
    result.local_op = std::make_unique<CrossEntropyBackwardOp>(
        op.ignore_index,
        op.first_class +
            FirstClass(call, result.inputs[1], call.inputs[1].sizes.back()));
  }
  return result;
}

}  // namespace

void AddCrossEntropyRules(OpRuleTable& table) {
  // Targets have no gradient.
  table[&CrossEntropyOp::kInfo] = {CrossEntropyRule, 1u << 1};
  table[&CrossEntropyBackwardOp::kInfo] = {CrossEntropyBackwardRule, 1u << 2};
  table[&CountTargetsOp::kInfo] = {EinsumRule("...->")};
}

}  // namespace crosshatch
