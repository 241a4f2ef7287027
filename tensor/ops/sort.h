// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_SORT_H_
#define CROSSHATCH_TENSOR_OPS_SORT_H_

/// \file
/// Sorting along a dim, whole or the first k only.
///
/// NaN is greater than all else and equal to NaN, as zeros of either sign are
/// to each other. Equal elements keep the order of their indices in either
/// direction: results are the same on every mesh. Any dtype. Negative dims
/// count from the end; a tensor of no dims has dim 0.

#include <cstdint>
#include <memory>

#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// (a) -> (values, indices): the first `count` elements of each lane of `dim`
/// in their order. With `sorted` false these elements by index.
class SortOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"sort"};
  /// \pre 0 <= dim < ndim
  SortOp(int dim, int64_t count, bool descending, bool sorted)
      : dim(dim), count(count), descending(descending), sorted(sorted) {}
  const OpInfo& info() const override { return kInfo; }
  /// A second input, of a's sizes and i64, has the elements' own indices.
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override;

  const int dim;
  const int64_t count;
  const bool descending;
  const bool sorted;
};

struct Sorted {
  Tensor values;
  /// i64: where each value was in its lane.
  Tensor indices;
};

/// The elements of each lane in ascending or descending order.
Sorted Sort(const Tensor& a, int64_t dim = -1, bool descending = false);

/// The k largest or smallest elements of each lane: the first k of a sort, or
/// with `sorted` false these by index.
/// \pre 0 <= k <= a.size(dim), checked
Sorted TopK(const Tensor& a, int64_t k, int64_t dim = -1, bool largest = true,
            bool sorted = true);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_SORT_H_
