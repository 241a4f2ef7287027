// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_CUMSUM_H_
#define CROSSHATCH_TENSOR_OPS_CUMSUM_H_

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
  void AppendKey(OpKey& key) const override;

  const int dim;
  const bool reverse;
};

/// Returns the cumulative sums: element i of a dim is the sum of a's elements
/// 0..i. In a's floating point dtype, summed in double; in i64 for integers and
/// bool. Negative dims count from the end; a tensor of no dims has dim 0.
Tensor CumSum(const Tensor& a, int64_t dim);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_CUMSUM_H_
