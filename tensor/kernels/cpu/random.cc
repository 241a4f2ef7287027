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
#define HWY_TARGET_INCLUDE "tensor/kernels/cpu/random.cc"
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

/// A box of a larger tensor.
struct Box {
  Box(const KernelShape& shape, const int64_t* offsets,
      const int64_t* global_sizes) {
    int64_t local_stride = 1;
    int64_t global_stride = 1;
    for (int d = shape.ndim - 1; d >= 0; --d) {
      local[d] = local_stride;
      global[d] = global_stride;
      first += offsets[d] * global_stride;
      local_stride *= shape.sizes[d];
      global_stride *= global_sizes[d];
    }
  }

  int64_t local[kMaxKernelDims];   ///< Strides of the box's own elements ...
  int64_t global[kMaxKernelDims];  ///< ... and of those of the tensor.
  int64_t first = 0;  ///< The index in the tensor of the box's first element.
};

constexpr int64_t kPiece = 512;

/// Calls body(cursor, start, count, numbers) with the random numbers of
/// `count` elements of a row from `start` on, for all elements.
/// \param loop operand 0 is the box, 1 the tensor
template <typename F>
void ForRandomNumbers(const Generator& generator, const Box& box,
                      const StridedLoop& loop, KernelContext& context,
                      const F& body) {
  if (loop.total() == 0) return;
  // Not 1 if the box is one element wide.
  const int64_t step = loop.inner_stride(1);
  internal::ForRowPieces(
      context, loop, kPiece, 4,
      [&](const RowCursor& cursor, int64_t start, int64_t count) HWY_ATTR {
        HWY_ALIGN float numbers[kPiece];
        const int64_t element = box.first + cursor.offset(1) + start * step;
        GenerateRun(generator, static_cast<uint64_t>(element), step, numbers,
                    count);
        body(cursor, start, count, numbers);
      });
}

void Random(const RandomArgs& args, KernelContext& context) {
  CH_CHECK(IsFloatingPoint(args.dtype))
      << "random kernel of " << Name(args.dtype);
  const bool uniform = args.kind == RandomKind::kUniform;
  const Generator generator = {
      args.key, args.stream, args.kind, static_cast<float>(args.a),
      static_cast<float>(uniform ? args.b - args.a : args.b)};
  const Box box(args.box, args.offsets, args.global_sizes);
  const auto loop = StridedLoop::Make(args.box, {box.local, box.global}, -1);
  ForRandomNumbers(generator, box, loop, context,
                   [&](const RowCursor& cursor, int64_t start, int64_t count,
                       const float* numbers) HWY_ATTR {
                     StoreRun(numbers,
                              internal::ElementAt(args.out, args.dtype,
                                                  cursor.offset(0) + start),
                              args.dtype, 1, count);
                   });
}

template <typename T>
void DropoutAs(const DropoutArgs& args, KernelContext& context) {
  const Generator generator = {args.key, args.stream, RandomKind::kUniform, 0,
                               1};
  const auto bound =
      static_cast<float>(std::ceil(args.p * 0x1.0p24) * 0x1.0p-24);
  // With p = 1 nothing is kept.
  const auto scale = static_cast<T>(args.p < 1 ? 1 / (1 - args.p) : 0);
  const Box box(args.shape, args.offsets, args.global_sizes);
  const auto loop = StridedLoop::Make(
      args.shape, {box.local, box.global, args.x.strides}, -1);
  const int64_t x_stride = loop.inner_stride(2);
  ForRandomNumbers(
      generator, box, loop, context,
      [&](const RowCursor& cursor, int64_t start, int64_t count,
          const float* numbers) HWY_ATTR {
        HWY_ALIGN T x[kPiece];
        LoadRun(internal::ElementAt(args.x.data, args.x.dtype,
                                    cursor.offset(2) + start * x_stride),
                args.x.dtype, x_stride, count, x);
        for (int64_t i = 0; i < count; ++i) {
          x[i] = numbers[i] >= bound ? x[i] * scale : T(0);
        }
        StoreRun(x,
                 internal::ElementAt(args.out, args.x.dtype,
                                     cursor.offset(0) + start),
                 args.x.dtype, 1, count);
      });
}

CH_FLOAT_KERNEL(Dropout, "dropout", args.x.dtype)

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace crosshatch {

CH_CPU_KERNEL(Random)
CH_CPU_KERNEL(Dropout)

}  // namespace crosshatch
#endif  // HWY_ONCE
