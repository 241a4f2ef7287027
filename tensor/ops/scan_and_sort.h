// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_SCAN_AND_SORT_H_
#define CROSSHATCH_TENSOR_OPS_SCAN_AND_SORT_H_

/// \file
/// Cumulative sums and sorts along a dim. Negative dims count from the end; a
/// tensor of no dims has dim 0.
///
/// Sorts take any dtype. NaN is greater than all other values and equal to NaN.
/// Zeros of either sign are equal. Equal elements keep the order of their
/// indices in either direction, so results are the same on every mesh.

#include <cstdint>
#include <memory>

#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// (a) -> the cumulative sums along `dim`, from its start or (reverse) from its
/// end. Each is the other's gradient.
class CumSumOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"cumsum"};
  /// \pre 0 <= dim < ndim
  explicit CumSumOp(int dim, bool reverse = false)
      : dim(dim), reverse(reverse) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override { AppendTo(key, dim, reverse); }

  const int dim;
  const bool reverse;
};

/// Returns the cumulative sums: element i of a dim is the sum of a's elements
/// 0..i. In a's floating point dtype, summed in double; in i64 for integers and
/// bool.
Tensor CumSum(const Tensor& a, int64_t dim);

/// (a) -> (values, indices): the first `count` elements along `dim` in sorted
/// order. If `sorted` is false, these elements by index.
class SortOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"sort"};
  /// \pre 0 <= dim < ndim
  SortOp(int dim, int64_t count, bool descending, bool sorted)
      : dim(dim), count(count), descending(descending), sorted(sorted) {}
  const OpInfo& info() const override { return kInfo; }
  /// An optional second input, of a's sizes and i64, has the elements' own
  /// indices.
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override {
    AppendTo(key, dim, count, descending, sorted);
  }

  const int dim;
  const int64_t count;
  const bool descending;
  const bool sorted;
};

struct Sorted {
  Tensor values;
  /// i64: the index of each value along the dim.
  Tensor indices;
};

/// Sorts along a dim, ascending or descending.
Sorted Sort(const Tensor& a, int64_t dim = -1, bool descending = false);

/// Returns the k largest or smallest elements along a dim: the first k of a
/// sort. If `sorted` is false, these by index.
/// \pre 0 <= k <= a.size(dim), checked
Sorted TopK(const Tensor& a, int64_t k, int64_t dim = -1, bool largest = true,
            bool sorted = true);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_SCAN_AND_SORT_H_
