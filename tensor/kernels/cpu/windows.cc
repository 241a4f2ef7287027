// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "crosshatch/tensor/kernels/cpu/element.h"
#include "crosshatch/tensor/kernels/cpu/entry_points.h"
#include "crosshatch/tensor/kernels/cpu/parallel.h"

namespace crosshatch::internal {
namespace {

/// Returns the number of elements of an image's windows, and of an image.
int64_t WindowSize(const WindowsArgs& args) {
  return args.channels * args.rows.kernel * args.cols.kernel;
}

template <typename T>
void UnfoldAs(const WindowsArgs& args, KernelContext& context) {
  const WindowDim& rows = args.rows;
  const WindowDim& cols = args.cols;
  const auto* const in = static_cast<const T*>(args.in);
  auto* const out = static_cast<T*>(args.out);
  const int64_t size = WindowSize(args);
  ForRanges(context, args.images * rows.windows * cols.windows, size,
            [&](int64_t begin, int64_t end) {
              for (int64_t window = begin; window < end; ++window) {
                const int64_t ow = window % cols.windows;
                const int64_t oh = window / cols.windows % rows.windows;
                const int64_t image = window / cols.windows / rows.windows;
                T* to = out + window * size;
                for (int64_t c = 0; c < args.channels; ++c) {
                  const T* const from =
                      in + (image * args.channels + c) * rows.size * cols.size;
                  for (int64_t kh = 0; kh < rows.kernel; ++kh) {
                    const int64_t h = rows.At(oh, kh);
                    const bool inside = h >= 0 && h < rows.size;
                    for (int64_t kw = 0; kw < cols.kernel; ++kw) {
                      const int64_t w = cols.At(ow, kw);
                      *to++ = inside && w >= 0 && w < cols.size
                                  ? from[h * cols.size + w]
                                  : T{};
                    }
                  }
                }
              }
            });
}

/// Returns the window whose element k is element `at` of the dim, or -1.
int64_t WindowOf(const WindowDim& dim, int64_t at, int64_t k) {
  const int64_t start = at + dim.padding - k * dim.dilation;
  if (start < 0 || start % dim.stride != 0) return -1;
  const int64_t window = start / dim.stride;
  return window < dim.windows ? window : -1;
}

template <typename T>
void FoldAs(const WindowsArgs& args, KernelContext& context) {
  using C = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const WindowDim& rows = args.rows;
  const WindowDim& cols = args.cols;
  const auto* const in = static_cast<const T*>(args.in);
  auto* const out = static_cast<T*>(args.out);
  const int64_t size = WindowSize(args);
  const int64_t kernel = rows.kernel * cols.kernel;
  const int64_t plane = rows.size * cols.size;
  constexpr int64_t kChannels = 128;
  ForRanges(
      context, args.images * plane, size, [&](int64_t begin, int64_t end) {
        for (int64_t at = begin; at < end; ++at) {
          const int64_t w = at % cols.size;
          const int64_t h = at / cols.size % rows.size;
          const int64_t image = at / plane;
          for (int64_t c = 0; c < args.channels; c += kChannels) {
            const int64_t count = std::min(kChannels, args.channels - c);
            C sums[kChannels] = {};
            for (int64_t kh = 0; kh < rows.kernel; ++kh) {
              const int64_t oh = WindowOf(rows, h, kh);
              if (oh < 0) continue;
              for (int64_t kw = 0; kw < cols.kernel; ++kw) {
                const int64_t ow = WindowOf(cols, w, kw);
                if (ow < 0) continue;
                const int64_t window =
                    (image * rows.windows + oh) * cols.windows + ow;
                const T* const from =
                    in + window * size + c * kernel + kh * cols.kernel + kw;
                for (int64_t i = 0; i < count; ++i) {
                  sums[i] += ConvertElement<C>(from[i * kernel]);
                }
              }
            }
            T* const to =
                out + (image * args.channels + c) * plane + h * cols.size + w;
            for (int64_t i = 0; i < count; ++i) {
              to[i * plane] = ConvertElement<T>(sums[i]);
            }
          }
        }
      });
}

}  // namespace

void CpuUnfold(const WindowsArgs& args, KernelContext& context) {
  DispatchDType(args.dtype, [&](auto element) {
    UnfoldAs<decltype(element)>(args, context);
  });
}

void CpuFold(const WindowsArgs& args, KernelContext& context) {
  CH_CHECK(IsFloatingPoint(args.dtype)) << "fold of " << Name(args.dtype);
  DispatchDType(args.dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (!std::is_integral_v<T>) FoldAs<T>(args, context);
  });
}

}  // namespace crosshatch::internal
