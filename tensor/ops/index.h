// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_INDEX_H_
#define CROSSHATCH_TENSOR_OPS_INDEX_H_

/// \file
/// Gathers and scatters elements by indices along one dim. Indices are i32, i64
/// or u16 and count from 0. If one is out of range, the kernel's check fails
/// and names the op, the index and the bound.

#include <cstdint>

#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// The indexed dim, of `bound` elements. A local tensor may have those from
/// `first` on, as a shard has.
struct IndexedBy {
  int dim = 0;
  int64_t bound = 0;
  int64_t first = 0;

  void AppendKey(OpKey& key) const { AppendTo(key, dim, bound, first); }
};

/// (a, index) -> out[.., j, ..] = a[.., index[.., j, ..], ..], of index's
/// sizes; zeros for elements that are not local. Sizes of a and index are equal
/// except for the dim.
class GatherOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"gather"};
  /// \param selects whether messages name index_select
  explicit GatherOp(const IndexedBy& by, bool selects = false)
      : by(by), selects(selects) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override { AppendTo(key, by, selects); }

  const IndexedBy by;
  const bool selects;
};

/// (index, src) -> the gradient of GatherOp: src added to zeros of `count`
/// elements in the dim. Sizes of index and src are equal. 16-bit floats are
/// summed in f32.
class GatherGradOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"gather_grad"};
  GatherGradOp(const IndexedBy& by, int64_t count) : by(by), count(count) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override { AppendTo(key, by, count); }

  const IndexedBy by;
  const int64_t count;
};

/// (base, index, src) -> base with src added at the indices.
class ScatterAddOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"scatter_add"};
  explicit ScatterAddOp(const IndexedBy& by) : by(by) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override { AppendTo(key, by); }

  const IndexedBy by;
};

/// (base, index, src) -> base with src, or `value` if there is no src, written
/// at the indices.
class ScatterOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {.name = "scatter",
                                   .optional_inputs = 1 << 2};
  explicit ScatterOp(const IndexedBy& by, double value = 0)
      : by(by), value(value) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override { AppendTo(key, by, value); }

  const IndexedBy by;
  const double value;
};

/// (index, grad) -> the gradient of ScatterOp's src: grad at what was written
/// last; zeros for what was overwritten or is not local.
class ScatterGradOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"scatter_grad"};
  explicit ScatterGradOp(const IndexedBy& by) : by(by) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override { AppendTo(key, by); }

  const IndexedBy by;
};

/// Returns out[i, j, k] = a[i, index[i, j, k], k] for dim 1, and so on. The
/// result has index's sizes, which equal a's except for `dim`.
Tensor Gather(const Tensor& a, int64_t dim, const Tensor& index);

/// Returns a[.., index, ..] for an index of one dim, whose size `dim` gets.
/// Does not copy the index.
Tensor IndexSelect(const Tensor& a, int64_t dim, const Tensor& index);

/// Returns base with src[i, j, k] added at [i, index[i, j, k], k] for dim 1,
/// and so on. Sizes of index and src are equal, and equal base's except for
/// `dim`. Sums are in the order of j. Floating point, i32 and i64.
Tensor ScatterAdd(const Tensor& base, int64_t dim, const Tensor& index,
                  const Tensor& src);

/// As ScatterAdd, but src replaces base's elements. If an index occurs twice,
/// the last one is written and has the gradient.
Tensor Scatter(const Tensor& base, int64_t dim, const Tensor& index,
               const Tensor& src);
Tensor Scatter(const Tensor& base, int64_t dim, const Tensor& index,
               double value);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_INDEX_H_
