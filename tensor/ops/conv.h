// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_CONV_H_
#define CROSSHATCH_TENSOR_OPS_CONV_H_

/// \file
/// Convolutions as matrix products: the windows of the input times the weight.
/// A split batch stays split. Split output channels of the weight give split
/// channels of the output; split input channels give partial sums. Splits of
/// rows and columns, within a weight's kernel and through groups are gathered.

#include <array>
#include <cstdint>

#include "crosshatch/tensor/kernels/window_kernels.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// The attributes of both directions.
class WindowsOp : public Op {
 public:
  void AppendKey(OpKey& key) const override {
    for (const WindowDim& dim : {rows, cols}) {
      AppendTo(key, dim.size, dim.windows, dim.kernel, dim.stride, dim.dilation,
               dim.padding);
    }
  }

  const WindowDim rows;  ///< The windows along H.
  const WindowDim cols;

 protected:
  WindowsOp(const WindowDim& rows, const WindowDim& cols)
      : rows(rows), cols(cols) {}
};

/// (images [N, C, H, W]) -> windows [N, windows of H, windows of W, C, kernel
/// of H, kernel of W].
class UnfoldOp final : public WindowsOp {
 public:
  static constexpr OpInfo kInfo = {"unfold"};
  UnfoldOp(const WindowDim& rows, const WindowDim& cols)
      : WindowsOp(rows, cols) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
};

/// (windows) -> images: each element is the sum of its copies by UnfoldOp. Each
/// is the other's gradient.
class FoldOp final : public WindowsOp {
 public:
  static constexpr OpInfo kInfo = {"fold"};
  FoldOp(const WindowDim& rows, const WindowDim& cols)
      : WindowsOp(rows, cols) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
};

/// One number for rows and one for columns, in this order.
using RowsCols = std::array<int64_t, 2>;

struct WindowOptions {
  RowsCols stride = {1, 1};
  /// Zeros before and after each row and column.
  RowsCols padding = {0, 0};
  /// The distance between a window's elements.
  RowsCols dilation = {1, 1};
};

/// Returns the windows of x [N, C, H, W], of kernel[0] x kernel[1] elements of
/// each channel: [N, H', W', C, kernel[0], kernel[1]], with H' = (H + 2 padding
/// - dilation (kernel - 1) - 1) / stride + 1, rounded down, and W' alike.
/// Checks that at least one fits.
Tensor Unfold(const Tensor& x, const RowsCols& kernel,
              const WindowOptions& options = {});

struct Conv2dOptions {
  WindowOptions windows = {};
  /// The number of groups of input and output channels. The channels of an
  /// output group depend on those of its input group only.
  int64_t groups = 1;
};

/// \param x [N, C, H, W]
/// \param weight [O, C / groups, kernel of H, kernel of W]
/// \param bias [O]; undefined for none
/// \returns [N, O, H', W'], with H' and W' as for Unfold. Channels are
///     innermost in memory.
Tensor Conv2d(const Tensor& x, const Tensor& weight,
              const Tensor& bias = Tensor(),
              const Conv2dOptions& options = Conv2dOptions());

struct Conv1dOptions {
  int64_t stride = 1;
  int64_t padding = 0;
  int64_t dilation = 1;
  int64_t groups = 1;
};

/// As Conv2d, of x [N, C, L] and weight [O, C / groups, kernel]: [N, O, L'].
Tensor Conv1d(const Tensor& x, const Tensor& weight,
              const Tensor& bias = Tensor(),
              const Conv1dOptions& options = Conv1dOptions());

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_CONV_H_
