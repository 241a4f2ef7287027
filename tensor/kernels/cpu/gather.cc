// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "crosshatch/tensor/kernels/cpu/element.h"
#include "crosshatch/tensor/kernels/cpu/entry_points.h"
#include "crosshatch/tensor/kernels/cpu/indices.h"
#include "crosshatch/tensor/kernels/cpu/parallel.h"
#include "crosshatch/tensor/kernels/cpu/strided_loop.h"

namespace crosshatch::internal {
namespace {

constexpr int64_t kPiece = 1024;

// Operands of the loop.
enum { kIndex, kSource, kOut };

/// Gathers `count` elements of a row of the loop: to[i] = the source's element
/// at `src` + i and the position index[i]. Reads no source and computes no
/// pointer into it if the source has no elements along the dim.
template <typename T, typename I>
void GatherRun(const GatherArgs& args, const StridedLoop& loop, const I* index,
               int64_t src, T* to, int64_t count) {
  const int64_t index_stride = loop.inner_stride(kIndex);
  const int64_t src_stride = loop.inner_stride(kSource);
  const int64_t to_stride = loop.inner_stride(kOut);
  const int64_t along = args.src.strides[args.at.dim];
  const T* const data = static_cast<const T*>(args.src.data);
  if (index_stride == 0) {
    // One index serves the whole run.
    const int64_t place = PlaceOf(args.at, *index);
    if (place < 0 || place >= args.at.count) {
      for (int64_t i = 0; i < count; ++i) to[i * to_stride] = T{};
      return;
    }
    const T* const from = data + src + place * along;
    if (src_stride == 1 && to_stride == 1) {
      std::memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
      return;
    }
    for (int64_t i = 0; i < count; ++i)
      to[i * to_stride] = from[i * src_stride];
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t place = PlaceOf(args.at, index[i * index_stride]);
    to[i * to_stride] = place >= 0 && place < args.at.count
                            ? data[src + i * src_stride + place * along]
                            : T{};
  }
}

template <typename T, typename I>
void GatherAs(const GatherArgs& args, KernelContext& context) {
  int64_t src_strides[kMaxKernelDims];
  std::copy(args.src.strides, args.src.strides + kMaxKernelDims, src_strides);
  // The index determines the offset along the dim.
  src_strides[args.at.dim] = 0;
  const auto loop = StridedLoop::Make(
      args.shape, {args.index.strides, src_strides, args.out.strides}, -1);
  if (loop.total() == 0) return;
  const int64_t pieces = (loop.inner() + kPiece - 1) / kPiece;
  ForRanges(
      context, loop.rows() * pieces, std::min(loop.inner(), kPiece),
      [&](int64_t begin, int64_t end) {
        for (int64_t unit = begin; unit < end; ++unit) {
          const RowCursor cursor(loop, unit / pieces);
          const int64_t start = unit % pieces * kPiece;
          const auto first = [&](int operand) {
            return cursor.offset(operand) + start * loop.inner_stride(operand);
          };
          GatherRun(args, loop,
                    static_cast<const I*>(args.index.data) + first(kIndex),
                    first(kSource),
                    static_cast<T*>(args.out.data) + first(kOut),
                    std::min(kPiece, loop.inner() - start));
        }
      });
}

}  // namespace

void CpuGather(const GatherArgs& args, KernelContext& context) {
  DispatchDType(args.src.dtype, [&](auto element) {
    DispatchIndices(args.at, args.index.dtype, [&](auto index) {
      GatherAs<decltype(element), decltype(index)>(args, context);
    });
  });
}

}  // namespace crosshatch::internal
