// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cpu/targets.h"
// Before the headers that are compiled once for each target.
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cpu/entry_points.h"
#include "crosshatch/tensor/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/kernels/cpu/copy.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "crosshatch/tensor/kernels/cpu/staging-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace crosshatch {
namespace HWY_NAMESPACE {

using internal::Blocking;
using internal::RowCursor;
using internal::StridedLoop;

/// Converts block by block. Operand 0 of the loop is written, operand 1 is
/// read. C is the compute type of the source's dtype, through which all
/// conversions go.
template <typename C>
void ConvertBlocks(const StridedLoop& loop, const CopyArgs& args,
                   KernelContext& context) {
  const Blocking blocking(loop);
  const int64_t to_stride = loop.inner_stride(0);
  const int64_t from_stride = loop.inner_stride(1);
  const DType to_dtype = args.out.dtype;
  const DType from_dtype = args.src.dtype;
  internal::ForRanges(
      context, blocking.blocks, Blocking::kBlock / 2,
      [&](int64_t begin, int64_t end) HWY_ATTR {
        HWY_ALIGN C buffer[Blocking::kBlock];
        for (int64_t b = begin; b < end; ++b) {
          const Blocking::Block block = blocking.At(b);
          RowCursor cursor(loop, block.row);
          for (int64_t r = 0; r < block.rows; ++r) {
            const void* from = internal::ElementAt(
                args.src.data, from_dtype,
                cursor.offset(1) + block.start * from_stride);
            void* to =
                internal::ElementAt(args.out.data, to_dtype,
                                    cursor.offset(0) + block.start * to_stride);
            if (to_dtype == DTypeOf<C> && to_stride == 1) {
              LoadRun(from, from_dtype, from_stride, block.count,
                      static_cast<C*>(to));
            } else if (from_dtype == DTypeOf<C> && from_stride == 1) {
              StoreRun(static_cast<const C*>(from), to, to_dtype, to_stride,
                       block.count);
            } else {
              LoadRun(from, from_dtype, from_stride, block.count, buffer);
              StoreRun(buffer, to, to_dtype, to_stride, block.count);
            }
            cursor.Next();
          }
        }
      });
}

void Convert(const StridedLoop& loop, const CopyArgs& args,
             KernelContext& context) {
  internal::DispatchCompute(args.src.dtype, [&](auto zero) HWY_ATTR {
    ConvertBlocks<decltype(zero)>(loop, args, context);
  });
}

template <typename C>
void AddInto(const StridedLoop& loop, const CopyArgs& args,
             KernelContext& context) {
  const Blocking blocking(loop);
  internal::ForRanges(context, blocking.blocks, Blocking::kBlock / 2,
                      [&](int64_t begin, int64_t end) HWY_ATTR {
                        StagedOutput<C> out(args.out, WriteMode::kAccumulate,
                                            loop, 0);
                        StagedInput<C> src(args.src, loop, 1);
                        for (int64_t b = begin; b < end; ++b) {
                          const Blocking::Block block = blocking.At(b);
                          const C* from = src.Load(loop, block);
                          std::copy(from, from + block.rows * block.count,
                                    out.Begin(loop, block));
                          out.End(loop, block);
                        }
                      });
}

void Accumulate(const StridedLoop& loop, const CopyArgs& args,
                KernelContext& context) {
  const DType from = args.src.dtype;
  const DType to = args.out.dtype;
  const bool in_double = from == DType::kFloat64 || to == DType::kFloat64 ||
                         IsFloatingPoint(from) != IsFloatingPoint(to);
  internal::DispatchCompute(in_double ? DType::kFloat64 : to,
                            [&](auto zero) HWY_ATTR {
                              AddInto<decltype(zero)>(loop, args, context);
                            });
}

}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace crosshatch {

HWY_EXPORT(Convert);
HWY_EXPORT(Accumulate);

namespace internal {
namespace {

/// Copies row by row, with any strides.
void CopyRows(const StridedLoop& loop, const CopyArgs& args,
              KernelContext& context) {
  const Blocking blocking(loop);
  const int64_t to_stride = loop.inner_stride(0);
  const int64_t from_stride = loop.inner_stride(1);
  const DType dtype = args.out.dtype;
  const bool contiguous = to_stride == 1 && from_stride == 1;
  ForRanges(context, blocking.blocks, Blocking::kBlock / (contiguous ? 4 : 2),
            [&](int64_t begin, int64_t end) {
              for (int64_t b = begin; b < end; ++b) {
                const Blocking::Block block = blocking.At(b);
                RowCursor cursor(loop, block.row);
                for (int64_t r = 0; r < block.rows; ++r) {
                  CopyRun(
                      ElementAt(args.src.data, dtype,
                                cursor.offset(1) + block.start * from_stride),
                      from_stride,
                      ElementAt(args.out.data, dtype,
                                cursor.offset(0) + block.start * to_stride),
                      to_stride, dtype, block.count);
                  cursor.Next();
                }
              }
            });
}

/// The output's inner dim is contiguous, and so is dim `d` of the source.
/// Copies in tiles, so that whole cache lines of both are used, and via a
/// buffer, because lines a power of two apart evict each other.
template <typename T>
void CopyTransposed(const StridedLoop& loop, int d, const CopyArgs& args,
                    KernelContext& context) {
  constexpr int64_t kTile = 32;
  const int last = loop.ndim - 1;
  const int64_t size = loop.sizes[d];
  const int64_t inner = loop.sizes[last];
  const int64_t to_stride = loop.strides[0][d];
  const int64_t from_stride = loop.strides[1][last];
  // The other dims; the inner one is reduced to one element.
  StridedLoop others = loop;
  others.sizes[d] = 1;
  others.sizes[last] = 1;
  const int64_t tiles = (size + kTile - 1) / kTile;
  ForRanges(context, others.rows() * tiles, kTile * inner,
            [&](int64_t begin, int64_t end) {
              T tile[kTile][kTile + 1];
              for (int64_t unit = begin; unit < end; ++unit) {
                const RowCursor cursor(others, unit / tiles);
                T* to = static_cast<T*>(args.out.data) + cursor.offset(0);
                const T* from =
                    static_cast<const T*>(args.src.data) + cursor.offset(1);
                const int64_t i0 = unit % tiles * kTile;
                const int64_t i1 = std::min(size, i0 + kTile);
                for (int64_t j0 = 0; j0 < inner; j0 += kTile) {
                  const int64_t j1 = std::min(inner, j0 + kTile);
                  for (int64_t j = j0; j < j1; ++j) {
                    const T* column = from + j * from_stride;
                    for (int64_t i = i0; i < i1; ++i) {
                      tile[i - i0][j - j0] = column[i];
                    }
                  }
                  for (int64_t i = i0; i < i1; ++i) {
                    std::copy(tile[i - i0], tile[i - i0] + (j1 - j0),
                              to + i * to_stride + j0);
                  }
                }
              }
            });
}

void CopySame(const StridedLoop& loop, const CopyArgs& args,
              KernelContext& context) {
  const int64_t from_stride = loop.inner_stride(1);
  if (loop.inner_stride(0) == 1 && from_stride != 0 && from_stride != 1) {
    for (int d = 0; d < loop.ndim - 1; ++d) {
      if (loop.strides[1][d] != 1) continue;
      DispatchSize(args.src.dtype, [&](auto element) {
        CopyTransposed<decltype(element)>(loop, d, args, context);
      });
      return;
    }
  }
  CopyRows(loop, args, context);
}

}  // namespace

void CpuCopy(const CopyArgs& args, KernelContext& context) {
  const auto loop =
      StridedLoop::Make(args.shape, {args.out.strides, args.src.strides}, 0);
  if (loop.total() == 0) return;
  if (args.mode == WriteMode::kAccumulate) {
    CH_CHECK(args.out.dtype != DType::kBool) << "copy kernel: adds to bool";
    HWY_DYNAMIC_DISPATCH(Accumulate)(loop, args, context);
  } else if (args.src.dtype == args.out.dtype) {
    CopySame(loop, args, context);
  } else {
    HWY_DYNAMIC_DISPATCH(Convert)(loop, args, context);
  }
}

void CpuFill(const FillArgs& args, KernelContext& context) {
  const auto loop = StridedLoop::Make(args.shape, {args.out.strides}, 0);
  const Blocking blocking(loop);
  const int64_t stride = loop.inner_stride(0);
  const DType dtype = args.out.dtype;
  uint64_t value = 0;
  if (IsStorageOnly(dtype)) {
    CH_CHECK_EQ(args.value, 0) << "fill kernel of " << Name(dtype);
  } else {
    DispatchDType(dtype, [&](auto element) {
      element = ConvertElement<decltype(element)>(args.value);
      std::memcpy(&value, &element, sizeof(element));
    });
  }
  ForRanges(context, blocking.blocks, Blocking::kBlock / 4,
            [&](int64_t begin, int64_t end) {
              for (int64_t b = begin; b < end; ++b) {
                const Blocking::Block block = blocking.At(b);
                RowCursor cursor(loop, block.row);
                for (int64_t r = 0; r < block.rows; ++r) {
                  CopyRun(&value, 0,
                          ElementAt(args.out.data, dtype,
                                    cursor.offset(0) + block.start * stride),
                          stride, dtype, block.count);
                  cursor.Next();
                }
              }
            });
}

void CpuArange(const ArangeArgs& args, KernelContext& context) {
  DispatchDType(args.dtype, [&](auto element) {
    using T = decltype(element);
    T* out = static_cast<T*>(args.out);
    ForRanges(context, args.count, 2, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        out[i] =
            ConvertElement<T>(args.start + static_cast<double>(i) * args.step);
      }
    });
  });
}

void CpuFromHost(const TransferArgs& args, KernelContext& /*context*/) {
  if (args.bytes == 0) return;
  std::memcpy(args.to, args.from, static_cast<size_t>(args.bytes));
}

void CpuToHost(const TransferArgs& args, KernelContext& context) {
  CpuFromHost(args, context);
}

}  // namespace internal
}  // namespace crosshatch
#endif  // HWY_ONCE
