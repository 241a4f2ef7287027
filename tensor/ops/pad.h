// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_PAD_H_
#define CROSSHATCH_TENSOR_OPS_PAD_H_

/// \file
/// Padding with zeros: the inverse of Slice.

#include <cstdint>

#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// (a) -> a with `before` and `after` zeros put around dim `dim`.
class PadOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"pad"};
  /// \pre 0 <= dim < ndim; before, after >= 0
  PadOp(int dim, int64_t before, int64_t after)
      : dim(dim), before(before), after(after) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override;

  const int dim;
  const int64_t before;
  const int64_t after;
};

/// Puts `before` and `after` zeros around dim `dim`.
Tensor Pad(const Tensor& a, int64_t dim, int64_t before, int64_t after);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_PAD_H_
