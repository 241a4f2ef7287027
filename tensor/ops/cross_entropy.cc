// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/cross_entropy.h"

#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/launch.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/ops/saving_node.h"

namespace crosshatch {
namespace {

using internal::Dense;
using internal::Launch;
using internal::LeadingSizes;
using internal::Rows;
using internal::ToRows;

void Check(const char* op, const Tensor& logits, const Tensor& targets) {
  CH_CHECK(logits.ndim() >= 1 &&
           LeadingSizes(logits.sizes()) == ShapeView(targets.sizes()))
      << op << " of logits " << logits.Describe() << " and targets "
      << targets.Describe();
  internal::CheckFloating(op, logits);
  internal::CheckIndices(op, targets);
}

void CheckStatistics(const char* op, const Tensor& logits,
                     const Tensor& statistics) {
  CH_CHECK(LeadingSizes(logits.sizes()) == ShapeView(statistics.sizes()) &&
           statistics.dtype() == StatisticsDType(logits.dtype()))
      << op << " of logits " << logits.Describe() << " and "
      << statistics.Describe();
}

/// \param targets contiguous
TargetsInput InputTargets(const Tensor& targets, int64_t ignore_index) {
  return {targets.raw_data(), targets.dtype(), ignore_index};
}

Tensor StatisticsOf(const Tensor& logits) {
  return Empty(LeadingSizes(logits.sizes()), StatisticsDType(logits.dtype()));
}

}  // namespace

TensorList CrossEntropyOp::Forward(TensorSpan inputs) const {
  Check(kInfo.name, inputs[0], inputs[1]);
  const Rows logits = ToRows(inputs[0]);
  const Tensor targets = Dense(inputs[1]);
  Tensor loss = StatisticsOf(inputs[0]);
  Tensor logsumexp = StatisticsOf(inputs[0]);
  CrossEntropyArgs args;
  args.rows = logits.rows;
  args.cols = logits.cols;
  args.logits = logits.input();
  args.targets = InputTargets(targets, ignore_index);
  args.loss = loss.raw_data();
  args.logsumexp = logsumexp.raw_data();
  args.dtype = inputs[0].dtype();
  internal::Launch(&KernelTable::cross_entropy, args);
  return {std::move(loss), std::move(logsumexp)};
}

std::shared_ptr<Node> CrossEntropyOp::Differentiate(TensorSpan inputs,
                                                    TensorSpan outputs) const {
  auto node = MakeNode<3>(
      kInfo, [ignore_index = ignore_index](const auto& self, TensorSpan grads,
                                           GradientSlots& slots) {
        slots.Put(
            0, Apply1(CrossEntropyBackwardOp(ignore_index, 0),
                      {grads[0], self.Saved(0), self.Saved(1), self.Saved(2)}));
      });
  node->Save(0, inputs[0]);
  node->Save(1, inputs[1]);
  node->SaveOutput(2, outputs[1], 1);
  return node;
}

TensorList CrossEntropyBackwardOp::Forward(TensorSpan inputs) const {
  Check(kInfo.name, inputs[1], inputs[2]);
  CheckStatistics(kInfo.name, inputs[1], inputs[0]);
  CheckStatistics(kInfo.name, inputs[1], inputs[3]);
  // The gradient of a mean or a sum is the same number for all rows.
  Tensor grad = inputs[0];
  bool one_for_all = true;
  for (int d = 0; d < grad.ndim(); ++d) {
    one_for_all &=
        grad.size(d) == 1 || grad.strides()[static_cast<size_t>(d)] == 0;
  }
  if (!one_for_all) grad = Dense(grad);
  const Rows logits = ToRows(inputs[1]);
  const Tensor targets = Dense(inputs[2]);
  const Tensor logsumexp = Dense(inputs[3]);
  Tensor dlogits = Empty(inputs[1].sizes(), inputs[1].dtype());
  CrossEntropyBackwardArgs args;
  args.rows = logits.rows;
  args.cols = logits.cols;
  args.first = first_class;
  args.logits = logits.input();
  args.targets = InputTargets(targets, ignore_index);
  args.logsumexp = logsumexp.raw_data();
  args.grad = grad.raw_data();
  args.grad_stride = one_for_all ? 0 : 1;
  args.dlogits = {dlogits.raw_data(), logits.cols};
  args.dtype = dlogits.dtype();
  Launch(&KernelTable::cross_entropy_backward, args);
  return {std::move(dlogits)};
}

TensorList CrossEntropyPartOp::Forward(TensorSpan inputs) const {
  Check(kInfo.name, inputs[0], inputs[1]);
  CheckStatistics(kInfo.name, inputs[0], inputs[2]);
  const Rows logits = ToRows(inputs[0]);
  const Tensor targets = Dense(inputs[1]);
  const Tensor row_max = Dense(inputs[2]);
  Launch(&KernelTable::check_index_range,
         CheckIndexRangeArgs{.op = "cross_entropy",
                             .index = "target",
                             .named = "classes, and rows without a "
                                      "target have ignore_index",
                             .count = targets.numel(),
                             .indices = targets.raw_data(),
                             .dtype = targets.dtype(),
                             .bound = classes,
                             .ignored = ignore_index});
  Tensor sum_exp = StatisticsOf(inputs[0]);
  Tensor picked = StatisticsOf(inputs[0]);
  CrossEntropyShardArgs args;
  args.rows = logits.rows;
  args.cols = logits.cols;
  args.first = first_class;
  args.logits = logits.input();
  args.targets = InputTargets(targets, ignore_index);
  args.row_max = row_max.raw_data();
  args.sum_exp = sum_exp.raw_data();
  args.picked = picked.raw_data();
  args.dtype = inputs[0].dtype();
  Launch(&KernelTable::cross_entropy_shard, args);
  return {std::move(sum_exp), std::move(picked)};
}

TensorList CountTargetsOp::Forward(TensorSpan inputs) const {
  const Tensor& targets = inputs[0];
  internal::CheckIndices(kInfo.name, targets);
  if (targets.dtype() == kUInt16 &&
      (ignore_index < 0 || ignore_index > 0xffff)) {
    return {Full({}, static_cast<double>(targets.numel()), dtype)};
  }
  const Tensor ignored =
      Full({}, static_cast<double>(ignore_index), targets.dtype());
  const Tensor counted = Empty(targets.sizes(), kBool);
  BinaryArgs compare;
  compare.op = BinaryOp::kNotEqual;
  compare.shape = internal::ToKernelShape(targets.sizes(), kInfo.name);
  compare.a = internal::Input(targets);
  compare.b = internal::BroadcastInput(ignored, targets.sizes());
  compare.out = internal::Output(counted);
  Launch(&KernelTable::binary, compare);

  const Tensor count = Empty({}, kInt64);
  ReduceArgs reduce;
  reduce.kind = ReduceKind::kSum;
  reduce.shape = compare.shape;
  reduce.reduced = (uint32_t{1} << targets.ndim()) - 1;
  reduce.in = internal::Input(counted);
  reduce.out = internal::Output(count);
  Launch(&KernelTable::reduce, reduce);

  Tensor out = Empty({}, dtype);
  internal::LaunchCopy(out, count);
  return {std::move(out)};
}

Tensor CrossEntropy(const Tensor& logits, const Tensor& targets,
                    const CrossEntropyOptions& options) {
  using Reduction = CrossEntropyOptions::Reduction;
  const Tensor losses =
      Apply1(CrossEntropyOp(options.ignore_index), {logits, targets});
  if (options.reduction == Reduction::kNone) return losses;
  const Tensor sum = Sum(losses);
  if (options.reduction == Reduction::kSum) return sum;
  return Div(sum, Apply1(CountTargetsOp(options.ignore_index, losses.dtype()),
                         {&targets, 1}));
}

}  // namespace crosshatch
