// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cpu/element.h"
#include "crosshatch/tensor/kernels/cpu/entry_points.h"
#include "crosshatch/tensor/kernels/cpu/parallel.h"
#include "crosshatch/tensor/kernels/cpu/strided_loop.h"

namespace crosshatch::internal {
namespace {

/// Calls f(T()) with the C++ type of the indices.
template <typename F>
void DispatchIndices(const IndexedDim& at, DType dtype, F&& f) {
  switch (dtype) {
    case DType::kInt32:
      return f(int32_t{});
    case DType::kUInt16:
      return f(uint16_t{});
    default:
      CH_CHECK(dtype == DType::kInt64)
          << at.op << " kernel: indices of " << Name(dtype);
      return f(int64_t{});
  }
}

/// Returns the position of `index` in the local tensor: outside of [0,
/// at.count) if it is not local. Checks that the index is in range.
int64_t PlaceOf(const IndexedDim& at, int64_t index) {
  CH_CHECK(index >= 0 && index < at.bound)
      << at.op << ": index " << index << " is out of range: dim " << at.dim
      << " has " << at.bound << " elements";
  return index - at.first;
}

// Operands of the loops.
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
  ForRowPieces(
      context, loop, /*piece=*/1024, /*cost=*/1,
      [&](const RowCursor& cursor, int64_t start, int64_t count) {
        const auto first = [&](int operand) {
          return cursor.offset(operand) + start * loop.inner_stride(operand);
        };
        GatherRun(args, loop,
                  static_cast<const I*>(args.index.data) + first(kIndex),
                  first(kSource), static_cast<T*>(args.out.data) + first(kOut),
                  count);
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

namespace {

template <typename To, typename From>
void Put(To& to, From from, WriteMode mode) {
  if (mode == WriteMode::kOverwrite) {
    to = ConvertElement<To>(from);
  } else if constexpr (std::is_integral_v<To>) {
    // Wraps: unsigned addition does so without undefined behaviour.
    to = static_cast<To>(static_cast<uint64_t>(to) +
                         static_cast<uint64_t>(ConvertElement<To>(from)));
  } else if constexpr (std::is_floating_point_v<To>) {
    to += ConvertElement<To>(from);
  }
}

// Distributes lines along the dim over threads.
template <typename To, typename From, typename I>
void ScatterAs(const ScatterArgs& args, KernelContext& context) {
  const int dim = args.at.dim;
  const int64_t length = args.shape.sizes[dim];
  KernelShape lines = args.shape;
  lines.sizes[dim] = 1;
  const auto loop = StridedLoop::Make(
      lines, {args.index.strides, args.src.strides, args.out.strides}, -1);
  if (loop.total() * length == 0) return;
  const int64_t index_along = args.index.strides[dim];
  const int64_t src_along = args.src.strides[dim];
  const int64_t out_along = args.out.strides[dim];
  const bool across = std::abs(loop.inner_stride(kOut)) <= std::abs(out_along);
  const auto run = [&](const RowCursor& cursor, int64_t start, int64_t count) {
    const auto first = [&](int operand) {
      return cursor.offset(operand) + start * loop.inner_stride(operand);
    };
    const auto* index = static_cast<const I*>(args.index.data) + first(kIndex);
    const auto* src = static_cast<const From*>(args.src.data) + first(kSource);
    // Not a pointer into the dim, which may have no elements.
    auto* const out = static_cast<To*>(args.out.data);
    const int64_t out_first = first(kOut);
    const auto put = [&](int64_t i, int64_t j) {
      const int64_t place = PlaceOf(
          args.at, index[i * loop.inner_stride(kIndex) + j * index_along]);
      if (place < 0 || place >= args.at.count) return;
      Put(out[out_first + i * loop.inner_stride(kOut) + place * out_along],
          src[i * loop.inner_stride(kSource) + j * src_along], args.mode);
    };
    // Choose the order with the smaller inner steps; the order along the dim is
    // kept either way.
    if (across) {
      for (int64_t j = 0; j < length; ++j) {
        for (int64_t i = 0; i < count; ++i) put(i, j);
      }
    } else {
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t j = 0; j < length; ++j) put(i, j);
      }
    }
  };
  ForRowPieces(context, loop, /*piece=*/256, /*cost=*/length * 2, run);
}

template <typename To, typename From>
void ScatterOf(const ScatterArgs& args, KernelContext& context) {
  DispatchIndices(args.at, args.index.dtype, [&](auto index) {
    ScatterAs<To, From, decltype(index)>(args, context);
  });
}

}  // namespace

void CpuScatter(const ScatterArgs& args, KernelContext& context) {
  const DType from = args.src.dtype;
  const DType to = args.out.dtype;
  if (args.mode == WriteMode::kOverwrite) {
    CH_CHECK(from == to) << args.at.op << " kernel: " << Name(from) << " into "
                         << Name(to);
    DispatchDType(to, [&](auto element) {
      ScatterOf<decltype(element), decltype(element)>(args, context);
    });
  } else if (to == DType::kFloat32 && from == DType::kBFloat16) {
    ScatterOf<float, BFloat16>(args, context);
  } else if (to == DType::kFloat32 && from == DType::kFloat16) {
    ScatterOf<float, Float16>(args, context);
  } else {
    CH_CHECK(from == to) << args.at.op << " kernel: " << Name(from)
                         << " added to " << Name(to);
    switch (to) {
      case DType::kFloat32:
        return ScatterOf<float, float>(args, context);
      case DType::kFloat64:
        return ScatterOf<double, double>(args, context);
      case DType::kInt32:
        return ScatterOf<int32_t, int32_t>(args, context);
      default:
        CH_CHECK(to == DType::kInt64)
            << args.at.op << " kernel: sums of " << Name(to);
        return ScatterOf<int64_t, int64_t>(args, context);
    }
  }
}

namespace {

template <typename I>
void CheckAs(const CheckIndexRangeArgs& args) {
  const I* const indices = static_cast<const I*>(args.indices);
  for (int64_t i = 0; i < args.count; ++i) {
    const int64_t index = indices[i];
    CH_CHECK((index >= 0 && index < args.bound) || index == args.ignored)
        << args.op << ": " << args.index << " " << index << " at " << i
        << " is out of range: there are " << args.bound << " " << args.named;
  }
}

}  // namespace

void CpuCheckIndexRange(const CheckIndexRangeArgs& args,
                        KernelContext& /*context*/) {
  DispatchIndices({.op = args.op}, args.dtype,
                  [&args](auto zero) { CheckAs<decltype(zero)>(args); });
}

}  // namespace crosshatch::internal
