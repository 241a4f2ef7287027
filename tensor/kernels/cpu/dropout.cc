// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cpu/targets.h"
// Before the headers that are compiled once for each target.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cpu/entry_points.h"
#include "crosshatch/tensor/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/kernels/cpu/dropout.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "crosshatch/tensor/kernels/cpu/random_run-inl.h"
#include "crosshatch/tensor/kernels/cpu/staging-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace crosshatch {
namespace HWY_NAMESPACE {
namespace {

using internal::RowCursor;
using internal::StridedLoop;

template <typename T>
void DropoutAs(const DropoutArgs& args, KernelContext& context) {
  constexpr int64_t kPiece = 512;
  const Generator generator = {args.key, args.stream, RandomKind::kUniform, 0,
                               1};
  const auto bound =
      static_cast<float>(std::ceil(args.p * 0x1.0p24) * 0x1.0p-24);
  // With p = 1 nothing is kept.
  const auto scale = static_cast<T>(args.p < 1 ? 1 / (1 - args.p) : 0);

  // Operand 0: x, 1: the local elements, 2: the global ones.
  int64_t local[kMaxKernelDims];
  int64_t global[kMaxKernelDims];
  int64_t first = 0;
  int64_t local_stride = 1;
  int64_t global_stride = 1;
  for (int d = args.shape.ndim - 1; d >= 0; --d) {
    local[d] = local_stride;
    global[d] = global_stride;
    first += args.offsets[d] * global_stride;
    local_stride *= args.shape.sizes[d];
    global_stride *= args.global_sizes[d];
  }
  const auto loop =
      StridedLoop::Make(args.shape, {args.x.strides, local, global}, -1);
  if (loop.total() == 0) return;
  const int64_t inner = loop.inner();
  const int64_t step = loop.inner_stride(2);
  const int64_t pieces = (inner + kPiece - 1) / kPiece;
  internal::ForRanges(
      context, loop.rows() * pieces, std::min(inner, kPiece) * 4,
      [&](int64_t begin, int64_t end) HWY_ATTR {
        HWY_ALIGN float u[kPiece];
        HWY_ALIGN T x[kPiece];
        for (int64_t unit = begin; unit < end; ++unit) {
          const RowCursor cursor(loop, unit / pieces);
          const int64_t start = unit % pieces * kPiece;
          const int64_t count = std::min(kPiece, inner - start);
          GenerateRun(
              generator,
              static_cast<uint64_t>(first + cursor.offset(2) + start * step),
              step, u, count);
          LoadRun(internal::ElementAt(
                      args.x.data, args.x.dtype,
                      cursor.offset(0) + start * loop.inner_stride(0)),
                  args.x.dtype, loop.inner_stride(0), count, x);
          for (int64_t i = 0; i < count; ++i) {
            x[i] = u[i] >= bound ? x[i] * scale : T(0);
          }
          StoreRun(x,
                   internal::ElementAt(args.out, args.x.dtype,
                                       cursor.offset(1) + start),
                   args.x.dtype, 1, count);
        }
      });
}

void Dropout(const DropoutArgs& args, KernelContext& context) {
  internal::DispatchFloat(args.x.dtype, "dropout", [&](auto zero) HWY_ATTR {
    DropoutAs<decltype(zero)>(args, context);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace crosshatch {

HWY_EXPORT(Dropout);

namespace internal {

void CpuDropout(const DropoutArgs& args, KernelContext& context) {
  HWY_DYNAMIC_DISPATCH(Dropout)(args, context);
}

}  // namespace internal
}  // namespace crosshatch
#endif  // HWY_ONCE
