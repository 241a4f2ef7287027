// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/embedding.h"

#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/launch.h"
#include "crosshatch/tensor/ops/saving_node.h"

namespace crosshatch {
namespace {

using internal::Dense;
using internal::Launch;
using internal::LaunchWithWorkspace;
using internal::Rows;
using internal::ToRows;

Shape WithColumns(const Tensor& ids, int64_t cols) {
  Shape sizes = ids.sizes();
  sizes.push_back(cols);
  return sizes;
}

/// Writes or adds the sums of grad's rows by id to dtable.
void SumRowsById(const char* op, const Tensor& dtable, const Tensor& ids,
                 const Tensor& grad, int64_t first_row, WriteMode mode) {
  internal::CheckIndices(op, ids);
  internal::CheckFloating(op, grad);
  CH_CHECK(grad.sizes() == WithColumns(ids, dtable.size(1)))
      << op << " of ids " << ids.Describe() << " and " << grad.Describe()
      << " into " << dtable.Describe();
  const Tensor dense_ids = Dense(ids);
  const Rows grad_rows = ToRows(grad);
  EmbeddingBackwardArgs args;
  args.rows = grad_rows.rows;
  args.cols = grad_rows.cols;
  args.first = first_row;
  args.table_rows = dtable.size(0);
  args.ids = dense_ids.raw_data();
  args.ids_dtype = ids.dtype();
  args.grad = grad_rows.input();
  args.dtable = ToRows(dtable).output();
  args.dtype = grad.dtype();
  args.dtable_dtype = dtable.dtype();
  args.mode = mode;
  LaunchWithWorkspace(&KernelTable::embedding_backward_workspace_bytes,
                      &KernelTable::embedding_backward, args);
}

class EmbeddingNode final : public SavingNode<1> {
 public:
  EmbeddingNode(const Tensor& ids, const Tensor& weight, int64_t first_row)
      : SavingNode(EmbeddingOp::kInfo),
        num_rows_(weight.size(0)),
        first_row_(first_row) {
    Save(0, ids);
  }

  void Backward(TensorSpan output_grads, GradientSlots& slots) override {
    const Tensor& g = output_grads[0];
    const GradDestination* destination = slots.Destination(1);
    if (destination != nullptr && Takes(destination->tensor, g)) {
      Apply(EmbeddingGradIntoOp(first_row_, destination->accumulate),
            {destination->tensor, Saved(0), g});
      slots.MarkWritten(1);
      return;
    }
    slots.Put(1, Apply1(EmbeddingGradOp(num_rows_, first_row_), {Saved(0), g}));
  }

 private:
  static bool Takes(const Tensor& to, const Tensor& g) {
    return (to.is_distributed() || to.is_contiguous()) &&
           (to.dtype() == g.dtype() ||
            (to.dtype() == kFloat32 && SizeOf(g.dtype()) == 2));
  }

  const int64_t num_rows_;
  const int64_t first_row_;
};

}  // namespace

TensorList EmbeddingOp::Forward(TensorSpan inputs) const {
  const Tensor& ids = inputs[0];
  const Tensor& weight = inputs[1];
  internal::CheckIndices(kInfo.name, ids);
  CH_CHECK_EQ(weight.ndim(), 2)
      << kInfo.name << " of " << ids.Describe() << " in " << weight.Describe();
  const Tensor dense_ids = Dense(ids);
  const Rows table = ToRows(weight);
  Launch(&KernelTable::check_index_range,
         CheckIndexRangeArgs{.op = kInfo.name,
                             .index = "id",
                             .named = "rows in the table",
                             .count = dense_ids.numel(),
                             .indices = dense_ids.raw_data(),
                             .dtype = dense_ids.dtype(),
                             .bound = bound});
  Tensor out = Empty(WithColumns(ids, table.cols), weight.dtype());
  EmbeddingArgs args;
  args.rows = ids.numel();
  args.cols = table.cols;
  args.first = first_row;
  args.table_rows = table.rows;
  args.ids = dense_ids.raw_data();
  args.ids_dtype = ids.dtype();
  args.table = table.input();
  args.out = {out.raw_data(), table.cols};
  args.dtype = weight.dtype();
  Launch(&KernelTable::embedding, args);
  return {std::move(out)};
}

std::shared_ptr<Node> EmbeddingOp::Differentiate(TensorSpan inputs,
                                                 TensorSpan /*outputs*/) const {
  return std::make_shared<EmbeddingNode>(inputs[0], inputs[1], first_row);
}

TensorList EmbeddingGradOp::Forward(TensorSpan inputs) const {
  const Tensor& grad = inputs[1];
  CH_CHECK_GE(grad.ndim(), 1) << kInfo.name << " of " << grad.Describe();
  Tensor dtable = Empty({num_rows, grad.size(-1)}, grad.dtype());
  SumRowsById(kInfo.name, dtable, inputs[0], grad, first_row,
              WriteMode::kOverwrite);
  return {std::move(dtable)};
}

std::shared_ptr<Node> EmbeddingGradOp::Differentiate(
    TensorSpan inputs, TensorSpan /*outputs*/) const {
  auto node = MakeNode<1>(
      kInfo, [first_row = first_row, bound = first_row + num_rows](
                 const auto& self, TensorSpan grads, GradientSlots& slots) {
        slots.Put(1, Apply1(EmbeddingOp(first_row, bound),
                            {self.Saved(0), grads[0]}));
      });
  node->Save(0, inputs[0]);
  return node;
}

TensorList EmbeddingGradIntoOp::Forward(TensorSpan inputs) const {
  const Tensor& dst = inputs[0];
  CH_CHECK(dst.ndim() == 2 && dst.is_contiguous())
      << kInfo.name << " into " << dst.Describe();
  BeginWrite(kInfo.name, dst);
  SumRowsById(kInfo.name, dst, inputs[1], inputs[2], first_row,
              accumulate ? WriteMode::kAccumulate : WriteMode::kOverwrite);
  return {dst};
}

Tensor Embedding(const Tensor& ids, const Tensor& weight) {
  CH_CHECK_GE(weight.ndim(), 1)
      << "embedding of " << ids.Describe() << " in " << weight.Describe();
  return Apply1(EmbeddingOp(/*first_row=*/0, /*bound=*/weight.size(0)),
                {ids, weight});
}

}  // namespace crosshatch
