// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/reference/windows.h"

namespace crosshatch::reference {

std::vector<int64_t> ElementsOfWindows(const WindowsArgs& args) {
  const WindowDim& rows = args.rows;
  const WindowDim& cols = args.cols;
  std::vector<int64_t> elements;
  for (int64_t n = 0; n < args.images; ++n) {
    for (int64_t oh = 0; oh < rows.windows; ++oh) {
      for (int64_t ow = 0; ow < cols.windows; ++ow) {
        for (int64_t c = 0; c < args.channels; ++c) {
          for (int64_t kh = 0; kh < rows.kernel; ++kh) {
            for (int64_t kw = 0; kw < cols.kernel; ++kw) {
              const int64_t h = rows.At(oh, kh);
              const int64_t w = cols.At(ow, kw);
              const bool inside =
                  h >= 0 && h < rows.size && w >= 0 && w < cols.size;
              elements.push_back(inside ? ((n * args.channels + c) * rows.size +
                                           h) * cols.size +
                                              w
                                        : -1);
            }
          }
        }
      }
    }
  }
  return elements;
}

}  // namespace crosshatch::reference
