// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "crosshatch/tensor/kernels/cuda/entry_points.h"
#include "crosshatch/tensor/kernels/cuda/row.cuh"

namespace crosshatch::internal {
namespace {

/// Heads per thread, for which it reads the angles once.
constexpr int64_t kHeadsOfThread = 16;

int64_t PartsOf(int64_t heads) {
  return (heads + kHeadsOfThread - 1) / kHeadsOfThread;
}

/// A thread rotates the same N pairs of up to kHeadsOfThread heads, which are
/// in `parts` parts.
template <typename C, int N>
__global__ void __launch_bounds__(256)
    RopeKernel(RopeArgs args, int64_t parts) {
  const int64_t half = args.head_dim / 2;
  const int64_t vectors = (half + N - 1) / N;
  const int64_t items = args.batch * args.time * parts * vectors;
  for (int64_t item = GlobalThread(); item < items; item += GlobalThreads()) {
    const int64_t part = item / vectors;
    const int64_t d = (item - part * vectors) * N;
    const int64_t count = half - d < N ? half - d : N;
    const int64_t row = part / parts;
    const int64_t first = (part - row * parts) * kHeadsOfThread;
    const int64_t rest = args.heads - first;
    const int64_t end = first + (rest < kHeadsOfThread ? rest : kHeadsOfThread);
    const int64_t b = row / args.time;
    const int64_t t = row - b * args.time;
    const int64_t from = b * args.x.batch_stride + t * args.x.time_stride + d;
    const int64_t to = b * args.out.batch_stride + t * args.out.time_stride + d;
    C cos[N];
    C sin[N];
    const int64_t angle = b * args.table_batch_stride + t * half + d;
    LoadVector(args.cos, DType::kFloat32, angle, 1, count, cos);
    LoadVector(args.sin, DType::kFloat32, angle, 1, count, sin);
    for (int64_t h = first; h < end; ++h) {
      const int64_t x_at = from + h * args.x.head_stride;
      const int64_t out_at = to + h * args.out.head_stride;
      C x[N];
      C y[N];
      LoadVector(args.x.data, args.dtype, x_at, 1, count, x);
      LoadVector(args.x.data, args.dtype, x_at + half, 1, count, y);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const C s = args.inverse ? -sin[i] : sin[i];
        const C turned = x[i] * cos[i] - y[i] * s;
        y[i] = y[i] * cos[i] + x[i] * s;
        x[i] = turned;
      }
      StoreVector<false>(args.out.data, args.dtype, out_at, count, x);
      StoreVector<false>(args.out.data, args.dtype, out_at + half, count, y);
    }
  }
}

template <typename Heads>
bool HasVectors(const Heads& x, DType dtype) {
  const int width = VectorWidthOf(dtype);
  return IsVectorAligned(x.data, dtype, x.batch_stride, width) &&
         x.time_stride % width == 0 && x.head_stride % width == 0;
}

}  // namespace

void CudaRope(const RopeArgs& args, KernelContext& context) {
  const int64_t half = args.head_dim / 2;
  const auto is_aligned = [&args](const float* table) {
    return IsVectorAligned(table, DType::kFloat32, args.table_batch_stride, 4);
  };
  const bool vectors = half % 8 == 0 && HasVectors(args.x, args.dtype) &&
                       HasVectors(args.out, args.dtype) &&
                       is_aligned(args.cos) && is_aligned(args.sin);
  DispatchRows(args.dtype, vectors, [&](auto zero, auto width) {
    const int64_t parts = PartsOf(args.heads);
    const int64_t items =
        args.batch * args.time * parts * ((half + width - 1) / width);
    LaunchKernel("rope", &RopeKernel<decltype(zero), decltype(width)::value>,
                 GeometryOfItems(items), context, args, parts);
  });
}

}  // namespace crosshatch::internal
