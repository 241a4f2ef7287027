// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cpu/targets.h"
// Before the headers that are compiled once for each target.
#include <algorithm>
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

void Random(const RandomArgs& args, KernelContext& context) {
  constexpr int64_t kPiece = 512;
  const bool uniform = args.kind == RandomKind::kUniform;
  const Generator generator = {
      args.key, args.stream, args.kind, static_cast<float>(args.a),
      static_cast<float>(uniform ? args.b - args.a : args.b)};

  // Operand 0: the local elements, 1: the global ones.
  int64_t local[kMaxKernelDims];
  int64_t global[kMaxKernelDims];
  int64_t first = 0;
  int64_t local_stride = 1;
  int64_t global_stride = 1;
  for (int d = args.box.ndim - 1; d >= 0; --d) {
    local[d] = local_stride;
    global[d] = global_stride;
    first += args.offsets[d] * global_stride;
    local_stride *= args.box.sizes[d];
    global_stride *= args.global_sizes[d];
  }
  const auto loop = StridedLoop::Make(args.box, {local, global}, -1);
  if (loop.total() == 0) return;
  const int64_t inner = loop.inner();
  // Not 1 if the box is one element wide.
  const int64_t step = loop.inner_stride(1);
  const int64_t pieces = (inner + kPiece - 1) / kPiece;
  internal::ForRanges(
      context, loop.rows() * pieces, std::min(inner, kPiece) * 4,
      [&](int64_t begin, int64_t end) HWY_ATTR {
        HWY_ALIGN float buffer[kPiece];
        for (int64_t unit = begin; unit < end; ++unit) {
          const RowCursor cursor(loop, unit / pieces);
          const int64_t start = unit % pieces * kPiece;
          const int64_t count = std::min(kPiece, inner - start);
          const auto element =
              static_cast<uint64_t>(first + cursor.offset(1) + start * step);
          GenerateRun(generator, element, step, buffer, count);
          StoreRun(buffer,
                   internal::ElementAt(args.out, args.dtype,
                                       cursor.offset(0) + start),
                   args.dtype, 1, count);
        }
      });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace crosshatch {

HWY_EXPORT(Random);

namespace internal {

void CpuRandom(const RandomArgs& args, KernelContext& context) {
  CH_CHECK(IsFloatingPoint(args.dtype))
      << "random kernel of " << Name(args.dtype);
  HWY_DYNAMIC_DISPATCH(Random)(args, context);
}

}  // namespace internal
}  // namespace crosshatch
#endif  // HWY_ONCE
