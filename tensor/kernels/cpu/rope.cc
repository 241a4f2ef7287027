// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cpu/targets.h"
// Before the headers that are compiled once for each target.
#include <algorithm>
#include <cstdint>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cpu/entry_points.h"
#include "crosshatch/tensor/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/kernels/cpu/rope.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "crosshatch/tensor/kernels/cpu/staging-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace crosshatch {
namespace HWY_NAMESPACE {
namespace {

/// Halves of heads are rotated in pieces of this many elements.
constexpr int64_t kPiece = 256;

template <typename T>
void RopeAs(const RopeArgs& args, KernelContext& context) {
  const int64_t half = args.head_dim / 2;
  internal::ForRanges(
      context, args.batch * args.time, args.heads * args.head_dim / 2,
      [&](int64_t begin, int64_t end) HWY_ATTR {
        HWY_ALIGN T cos_buffer[kPiece];
        HWY_ALIGN T sin_buffer[kPiece];
        HWY_ALIGN T low_buffer[kPiece];
        HWY_ALIGN T high_buffer[kPiece];
        HWY_ALIGN T low_out[kPiece];
        HWY_ALIGN T high_out[kPiece];
        for (int64_t row = begin; row < end; ++row) {
          const int64_t b = row / args.time;
          const int64_t t = row % args.time;
          for (int64_t start = 0; start < half; start += kPiece) {
            const int64_t count = std::min(kPiece, half - start);
            const int64_t angle =
                b * args.table_batch_stride + t * half + start;
            const T* cos =
                Staged(args.cos + angle, DType::kFloat32, count, cos_buffer);
            LoadRun(args.sin + angle, DType::kFloat32, 1, count, sin_buffer);
            if (args.inverse) {
              for (int64_t i = 0; i < count; ++i)
                sin_buffer[i] = -sin_buffer[i];
            }
            for (int64_t h = 0; h < args.heads; ++h) {
              const void* from = internal::ElementAt(
                  args.x.data, args.dtype,
                  b * args.x.batch_stride + t * args.x.time_stride +
                      h * args.x.head_stride + start);
              void* to = internal::ElementAt(
                  args.out.data, args.dtype,
                  b * args.out.batch_stride + t * args.out.time_stride +
                      h * args.out.head_stride + start);
              const T* low = Staged(from, args.dtype, count, low_buffer);
              const T* high =
                  Staged(internal::ElementAt(from, args.dtype, half),
                         args.dtype, count, high_buffer);
              for (int64_t i = 0; i < count; ++i) {
                low_out[i] = low[i] * cos[i] - high[i] * sin_buffer[i];
                high_out[i] = high[i] * cos[i] + low[i] * sin_buffer[i];
              }
              StoreRun(low_out, to, args.dtype, 1, count);
              StoreRun(high_out, internal::ElementAt(to, args.dtype, half),
                       args.dtype, 1, count);
            }
          }
        }
      });
}

void Rope(const RopeArgs& args, KernelContext& context) {
  internal::DispatchFloat(args.dtype, "rope", [&](auto zero) HWY_ATTR {
    RopeAs<decltype(zero)>(args, context);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace crosshatch {

HWY_EXPORT(Rope);

namespace internal {

void CpuRope(const RopeArgs& args, KernelContext& context) {
  CH_CHECK(args.head_dim % 2 == 0)
      << "rope kernel: odd head dim " << args.head_dim;
  HWY_DYNAMIC_DISPATCH(Rope)(args, context);
}

}  // namespace internal
}  // namespace crosshatch
#endif  // HWY_ONCE
