// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_REDUCE_H_
#define CROSSHATCH_TENSOR_OPS_REDUCE_H_

/// \file
/// Reductions over dims. No dims means all. Negative dims count from the end.
/// Results have the input's dtype unless stated otherwise; sums of integers and
/// bool are i64.

#include <cstdint>

#include "crosshatch/tensor/kernels/kernel_table.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// (a) -> the reduction of a over `dims`. `out_dtype` is one that the kernel
/// supports (kernel_table.h).
class ReductionOp final : public Op {
 public:
  /// \param dims ascending, each in [0, ndim), possibly none.
  ReductionOp(ReduceKind kind, ShapeView dims, bool keepdim, DType out_dtype)
      : kind(kind),
        dims(dims.begin(), dims.end()),
        keepdim(keepdim),
        out_dtype(out_dtype) {}
  /// The identity of a kind: "sum", "argmax", ...
  static const OpInfo& InfoOf(ReduceKind kind);

  const OpInfo& info() const override { return InfoOf(kind); }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override;

  const ReduceKind kind;
  const Shape dims;
  const bool keepdim;
  const DType out_dtype;
};

Tensor Sum(const Tensor& a, ShapeView dims = {}, bool keepdim = false);
/// Floating point only.
Tensor Mean(const Tensor& a, ShapeView dims = {}, bool keepdim = false);
Tensor Prod(const Tensor& a, ShapeView dims = {}, bool keepdim = false);
/// NaN if any element is NaN. Equal largest elements share the gradient evenly.
Tensor Max(const Tensor& a, ShapeView dims = {}, bool keepdim = false);
Tensor Min(const Tensor& a, ShapeView dims = {}, bool keepdim = false);
/// Sum of squares.
Tensor SumOfSquares(const Tensor& a, ShapeView dims = {}, bool keepdim = false);
/// Returns the index (i64) of the largest element of a dim, the first of equal
/// ones.
Tensor ArgMax(const Tensor& a, int64_t dim, bool keepdim = false);
Tensor ArgMin(const Tensor& a, int64_t dim, bool keepdim = false);

/// Sums over the dims along which broadcasting `sizes` to a's sizes repeated:
/// the gradient of the broadcast. `a` itself if there are none.
Tensor SumTo(const Tensor& a, ShapeView sizes);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_REDUCE_H_
