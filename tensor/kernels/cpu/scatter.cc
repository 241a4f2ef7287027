// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <type_traits>

#include "crosshatch/tensor/kernels/cpu/element.h"
#include "crosshatch/tensor/kernels/cpu/entry_points.h"
#include "crosshatch/tensor/kernels/cpu/indices.h"
#include "crosshatch/tensor/kernels/cpu/parallel.h"
#include "crosshatch/tensor/kernels/cpu/strided_loop.h"

namespace crosshatch::internal {
namespace {

constexpr int64_t kPiece = 256;

// Operands of the loop.
enum { kIndex, kSource, kOut };

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
  const int64_t pieces = (loop.inner() + kPiece - 1) / kPiece;
  const auto run = [&](int64_t unit) {
    const RowCursor cursor(loop, unit / pieces);
    const int64_t start = unit % pieces * kPiece;
    const int64_t count = std::min(kPiece, loop.inner() - start);
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
  ForRanges(context, loop.rows() * pieces,
            std::min(loop.inner(), kPiece) * length * 2,
            [&](int64_t begin, int64_t end) {
              for (int64_t unit = begin; unit < end; ++unit) run(unit);
            });
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

}  // namespace crosshatch::internal
