// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_WINDOW_KERNELS_H_
#define CROSSHATCH_TENSOR_KERNELS_WINDOW_KERNELS_H_

/// \file
/// Windows of images, with which a convolution is a matrix product, and their
/// sum.

#include <cstdint>

#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/kernels/operands.h"

namespace crosshatch {

/// Windows along a dim of `size` elements: element k of window w is element w *
/// stride + k * dilation - padding of the dim, or a zero outside of it.
struct WindowDim {
  int64_t size = 1;
  int64_t windows = 1;
  int64_t kernel = 1;  ///< Elements of a window.
  int64_t stride = 1;
  int64_t dilation = 1;
  int64_t padding = 0;  ///< Before the first element.

  /// May be outside of [0, size).
  int64_t At(int64_t window, int64_t k) const {
    return window * stride + k * dilation - padding;
  }
};

/// For both directions: images [N, C, H, W], and windows [N, windows of H,
/// windows of W, C, kernel of H, kernel of W], both contiguous.
struct WindowsArgs {
  int64_t images = 0;
  int64_t channels = 0;
  WindowDim rows;
  WindowDim cols;
  const void* in = nullptr;
  void* out = nullptr;
  DType dtype = DType::kFloat32;
};

/// unfold: images to windows, of any dtype. fold: windows to images; each
/// element is the sum, by ascending index in the kernel, of the elements that
/// unfold copies it to, or zero if there are none. Floating point; 16-bit
/// floats are summed in f32 and rounded once. The list of this family
/// (kernel_table.h).
#define CH_WINDOW_KERNELS(K, W, d)  \
  K(d, unfold, Unfold, WindowsArgs) \
  K(d, fold, Fold, WindowsArgs)

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_KERNELS_WINDOW_KERNELS_H_
