// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_REDUCE_H_
#define CROSSHATCH_TENSOR_OPS_REDUCE_H_

/// \file
/// Reductions over dims. No dims means all. Negative dims count from the end.
/// Results have the input's dtype unless stated otherwise; sums of integers and
/// bool are i64.

#include <cstdint>
#include <memory>
#include <optional>

#include "crosshatch/tensor/kernels/kernel_table.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/shape.h"
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
  void AppendKey(OpKey& key) const override {
    AppendTo(key, keepdim, out_dtype, dims);
  }

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

/// (a) -> the same values, without pending reductions.
class ReducePartialOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {.name = "reduce_partial", .view = true};
  const OpInfo& info() const override { return kInfo; }
  std::optional<Shape> AliasStrides(const Tensor& input,
                                    ShapeView strides) const override;
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
};

/// Performs the pending reductions of `a` if it is distributed; otherwise
/// returns `a` itself. Each op that does not commute with a pending reduction
/// performs it by itself. Code that uses a value more than once, also in
/// backward, calls ReducePartial first, so that the ranks reduce once. The
/// gradient is reduced, too. The result may share memory with `a` and must not
/// be written.
Tensor ReducePartial(const Tensor& a);

/// \name Reductions composed of others, with their gradients and sharding rules
/// If a reduced dim is split, the ranks exchange results of the local
/// reductions and never the tensor. Floating point unless stated otherwise; the
/// result has the input's dtype. 16-bit floats are computed in f32 throughout
/// and rounded once.
/// @{

/// Returns sum(|a|^p)^(1/p), for any p except NaN: the largest |a| for
/// infinity, the smallest for -infinity, the number of elements other than 0
/// for 0. Where the derivative does not exist (a norm of 0, an element 0 with p
/// <= 1) the gradient is 0; equal largest elements share it. A norm of no
/// elements is 0; with p < 0 or infinite it is an error.
Tensor Norm(const Tensor& a, double p = 2, ShapeView dims = {},
            bool keepdim = false);

/// Returns sum((a - mean(a))^2) / max(n - correction, 0), with n elements, in
/// two passes, so that a large mean costs no precision.
Tensor Var(const Tensor& a, ShapeView dims = {}, bool keepdim = false,
           double correction = 1);
/// Returns the square root of Var. Where it is 0, the gradient is 0.
Tensor Std(const Tensor& a, ShapeView dims = {}, bool keepdim = false,
           double correction = 1);

/// Returns log(sum(exp(a))), without overflow; -inf for no elements.
Tensor LogSumExp(const Tensor& a, ShapeView dims = {}, bool keepdim = false);

/// Returns whether some element is not 0, as bool. Of any dtype; NaN is not 0.
Tensor Any(const Tensor& a, ShapeView dims = {}, bool keepdim = false);
/// Returns whether no element is 0, as bool. Of any dtype.
Tensor All(const Tensor& a, ShapeView dims = {}, bool keepdim = false);
/// @}

namespace internal {

/// Returns ascending dims in [0, ndim); all if `dims` is empty. Checks that
/// they are distinct dims of `a`; the message names `op`.
Shape NormalizeDims(ShapeView dims, const Tensor& a, const char* op);

/// Returns `sizes` with those of `dims` set to 1.
Shape KeptSizes(ShapeView sizes, ShapeView dims);

/// Returns `sizes` without those of `dims`.
/// \pre dims ascend
Shape DroppedSizes(ShapeView sizes, ShapeView dims);

/// Returns the product of the sizes of `dims`.
int64_t NumReduced(ShapeView sizes, ShapeView dims);

}  // namespace internal

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_REDUCE_H_
