// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_WINDOWS_H_
#define CROSSHATCH_TENSOR_OPS_WINDOWS_H_

/// \file
/// Windows of images, with which a convolution is a matrix product (conv.h).

#include <array>
#include <cstdint>

#include "crosshatch/tensor/kernels/window_kernels.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// (images [N, C, H, W]) -> windows [N, windows of H, windows of W, C, kernel
/// of H, kernel of W].
class UnfoldOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"unfold"};
  /// \param rows, cols describe the windows along H and W.
  UnfoldOp(const WindowDim& rows, const WindowDim& cols)
      : rows(rows), cols(cols) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override;

  const WindowDim rows;
  const WindowDim cols;
};

/// (windows) -> images: each element is the sum of its copies by UnfoldOp. Each
/// is the other's gradient.
class FoldOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"fold"};
  FoldOp(const WindowDim& rows, const WindowDim& cols)
      : rows(rows), cols(cols) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override;

  const WindowDim rows;
  const WindowDim cols;
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

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_WINDOWS_H_
