// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_WINDOW_KERNELS_H_
#define CROSSHATCH_TENSOR_KERNELS_WINDOW_KERNELS_H_

/// \file
/// Windows of images, which make a convolution a product of matrices, and their
/// sum.

#include <cstdint>

#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/kernels/operands.h"

namespace crosshatch {

/// Windows along a dim of `size` elements: element k of window w is element
/// w * stride + k * dilation - padding of the dim, or a zero beside it.
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

/// Both ways: images [N, C, H, W], and windows [N, windows of H, windows of W,
/// C, kernel of H, kernel of W], both contiguous.
struct WindowsArgs {
  int64_t images = 0;
  int64_t channels = 0;
  WindowDim rows;
  WindowDim cols;
  const void* in = nullptr;
  void* out = nullptr;
  DType dtype = DType::kFloat32;
};

/// What a device can do with windows.
struct WindowKernels {
  /// Images to windows. Any dtype.
  void (*unfold)(const WindowsArgs&, KernelContext&);
  /// Windows to images: each element the sum, by ascending places in the
  /// kernel, of those that unfold makes of it; zero where there are none.
  /// Floating point; 16-bit floats are summed in f32 and rounded once.
  void (*fold)(const WindowsArgs&, KernelContext&);
};

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_KERNELS_WINDOW_KERNELS_H_
