// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_VIEW_H_
#define CROSSHATCH_TENSOR_OPS_VIEW_H_

/// \file
/// Views: other shapes of the same memory. A write through a view changes its
/// base and, in grad mode, the base's history. (To autograd, a view created in
/// NoGrad is an independent tensor.) Negative dims count from the end.
///
/// Whether a result is a view depends on sizes and strides, for a distributed
/// tensor on its global strides (Tensor::strides), and never on how a rank
/// stores its part. A view that moves elements between ranks (Slice of a split
/// dim), or whose parts cannot be views on every rank, may be a copy. It must
/// not be written, and not be used after a write to its base; both fail a
/// check, on every rank.

#include <optional>

#include "crosshatch/tensor/node.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// The history updates of strided views of local memory.
extern const ViewHistory kStridedViewHistory;

/// (a) -> the same elements in row-major order as `sizes`. If the strides do
/// not allow a view, it is a copy with `may_copy`, otherwise a failed check.
class ViewOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {
      .name = "view", .view = true, .view_history = &kStridedViewHistory};
  /// \param sizes without -1.
  /// \param redistributes if no layout of the result fits the layout of a
  ///     distributed input: whether to redistribute the input; otherwise it is
  ///     a failed check.
  explicit ViewOp(ShapeView sizes, bool may_copy = false,
                  bool redistributes = false)
      : sizes(sizes.begin(), sizes.end()),
        may_copy(may_copy),
        redistributes(redistributes) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::optional<Shape> AliasStrides(const Tensor& input,
                                    ShapeView strides) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override {
    AppendTo(key, may_copy, redistributes, sizes);
  }

  const Shape sizes;
  const bool may_copy;
  const bool redistributes;
};

/// (a) -> dim i of the result is dim dims[i] of a.
class PermuteOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {
      .name = "permute", .view = true, .view_history = &kStridedViewHistory};
  /// \param dims a permutation of 0 .. ndim-1.
  explicit PermuteOp(ShapeView dims) : dims(dims.begin(), dims.end()) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::optional<Shape> AliasStrides(const Tensor& input,
                                    ShapeView strides) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override { AppendTo(key, dims); }

  const Shape dims;
};

/// (a) -> elements [start, end) of dim `dim`.
class SliceOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {
      .name = "slice", .view = true, .view_history = &kStridedViewHistory};
  /// \pre 0 <= dim < ndim, 0 <= start <= end <= size(dim)
  SliceOp(int dim, int64_t start, int64_t end)
      : dim(dim), start(start), end(end) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::optional<Shape> AliasStrides(const Tensor& input,
                                    ShapeView strides) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override { AppendTo(key, dim, start, end); }

  const int dim;
  const int64_t start;
  const int64_t end;
};

/// (a) -> broadcast to `sizes`: dims of size 1 and new leading dims repeat.
class ExpandOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {
      .name = "expand", .view = true, .view_history = &kStridedViewHistory};
  explicit ExpandOp(ShapeView sizes) : sizes(sizes.begin(), sizes.end()) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::optional<Shape> AliasStrides(const Tensor& input,
                                    ShapeView strides) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override { AppendTo(key, sizes); }

  const Shape sizes;
};

/// Returns the same elements, in row-major order, in another shape; one size
/// may be -1. Fails a check if the strides do not allow a view; for a
/// distributed tensor as Reshape.
///
/// If a distributed tensor is split within dims that the view merges, no layout
/// of the result has the same elements on every rank. In forward that is a
/// failed check, because the program must choose what to gather. In backward
/// the tensor is redistributed, because a program does not choose the layout of
/// a gradient.
Tensor View(const Tensor& a, ShapeView sizes);
/// As View, but copies if the strides do not allow a view.
Tensor Reshape(const Tensor& a, ShapeView sizes);
/// Dims [first, last] become one.
Tensor Flatten(const Tensor& a, int64_t first = 0, int64_t last = -1);
/// Dim `dim` becomes dims of `sizes`, one of which may be -1.
Tensor Unflatten(const Tensor& a, int64_t dim, ShapeView sizes);
/// Drops dim `dim`, whose size is 1.
Tensor Squeeze(const Tensor& a, int64_t dim);
/// Adds a dim of size 1 before dim `dim` of a (ndim: at the end).
Tensor Unsqueeze(const Tensor& a, int64_t dim);
/// Swaps two dims.
Tensor Transpose(const Tensor& a, int64_t dim0, int64_t dim1);
Tensor Permute(const Tensor& a, ShapeView dims);
/// Dim `from` becomes dim `to` of the result, the others in order.
Tensor MoveDim(const Tensor& a, int64_t from, int64_t to);
/// Elements [start, end) of a dim; both are clamped as Python does.
Tensor Slice(const Tensor& a, int64_t dim, int64_t start, int64_t end);
/// Returns `length` elements of a dim from `start` on, which must exist.
Tensor Narrow(const Tensor& a, int64_t dim, int64_t start, int64_t length);
/// Returns element `index` of a dim, without that dim.
Tensor Select(const Tensor& a, int64_t dim, int64_t index);
/// Broadcasts; -1 keeps a size.
Tensor Expand(const Tensor& a, ShapeView sizes);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_VIEW_H_
