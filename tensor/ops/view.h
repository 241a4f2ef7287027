// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_VIEW_H_
#define CROSSHATCH_TENSOR_OPS_VIEW_H_

/// \file
/// Other shapes of the same memory. A view aliases: a write through it changes
/// the tensor it is of, and in grad mode that tensor's history too. (A view
/// made in NoGrad is a tensor of its own to autograd.) Negative dims count from
/// the end.
///
/// Whether a result is a view follows from sizes and strides, of a distributed
/// tensor from those of the whole (Tensor::strides), and never from how a rank
/// happens to hold its part. A view that moves elements between ranks first
/// (Slice of a split dim), or whose parts cannot be views everywhere, is a copy
/// that stands for a view: it is not written to, and not used after what it is
/// a view of was written; both fail a check, on every rank.

#include <optional>

#include "crosshatch/tensor/node.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// How histories follow writes to strided views of local memory.
extern const ViewHistory kStridedViewHistory;

/// (a) -> the same elements in row-major order as `sizes`. Where the strides do
/// not allow a view: a copy with `may_copy`, else a check.
class ViewOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {
      .name = "view", .view = true, .view_history = &kStridedViewHistory};
  /// \param sizes with no -1 left in it.
  /// \param redistributes whether a distributed input in a layout that no
  ///     layout of the result fits is redistributed; else that is a check.
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
  void AppendKey(OpKey& key) const override;

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
  void AppendKey(OpKey& key) const override;

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
  void AppendKey(OpKey& key) const override;

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
  void AppendKey(OpKey& key) const override;

  const Shape sizes;
};

/// The same elements, in row-major order, as another shape; one size may be -1.
/// A check where the strides do not allow a view; of a distributed tensor as
/// Reshape.
///
/// If a distributed tensor is split within what the view keeps together, no
/// layout of the result has the same elements on every rank. That is a check in
/// forward, because only the program can say what to gather. In backward the
/// tensor is redistributed: a program does not choose the layout of a gradient.
Tensor View(const Tensor& a, ShapeView sizes);
/// Gives what View gives, or a copy where the strides do not allow a view.
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
/// `length` elements of a dim from `start` on; must be there.
Tensor Narrow(const Tensor& a, int64_t dim, int64_t start, int64_t length);
/// Element `index` of a dim, which goes away.
Tensor Select(const Tensor& a, int64_t dim, int64_t index);
/// Broadcasts; -1 keeps a size.
Tensor Expand(const Tensor& a, ShapeView sizes);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_VIEW_H_
