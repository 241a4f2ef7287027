// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cuda/elementwise.cuh"
#include "crosshatch/tensor/kernels/cuda/entry_points.h"
#include "crosshatch/tensor/kernels/cuda/row.cuh"
#include "crosshatch/tensor/kernels/cuda/stable_sort.h"

namespace crosshatch::internal {
namespace {

struct Bytes16 {
  uint64_t words[2];
};

/// Rows of `units` units of T. A thread copies one unit.
template <typename T>
__global__ void __launch_bounds__(256)
    EmbeddingKernel(EmbeddingArgs args, int64_t units, int64_t table_stride,
                    int64_t out_stride) {
  const int64_t items = args.rows * units;
  for (int64_t item = GlobalThread(); item < items; item += GlobalThreads()) {
    const int64_t r = item / units;
    const int64_t unit = item - r * units;
    const int64_t row = LoadIndex(args.ids, args.ids_dtype, r) - args.first;
    T value = {};
    if (row >= 0 && row < args.table_rows) {
      value = LoadGlobal<T>(static_cast<const T*>(args.table.data) +
                            row * table_stride + unit);
    }
    StoreGlobal(static_cast<T*>(args.out.data) + r * out_stride + unit, value);
  }
}

/// Returns the table row of each id, or table_rows for ids out of range, so
/// that those come last.
__global__ void __launch_bounds__(256)
    KeysKernel(EmbeddingBackwardArgs args, uint64_t* keys, int64_t* rows) {
  for (int64_t r = GlobalThread(); r < args.rows; r += GlobalThreads()) {
    const int64_t row = LoadIndex(args.ids, args.ids_dtype, r) - args.first;
    const bool here = row >= 0 && row < args.table_rows;
    StoreGlobal(keys + r, static_cast<uint64_t>(here ? row : args.table_rows));
    StoreGlobal(rows + r, r);
  }
}

/// Each thread sums N columns of the gradient rows of one id, in order. The
/// thread at the first of these rows does so.
template <typename C, int N>
__global__ void __launch_bounds__(256)
    SumRowsKernel(EmbeddingBackwardArgs args, const uint64_t* keys,
                  const int64_t* rows) {
  const int64_t units = (args.cols + N - 1) / N;
  const int64_t items = args.rows * units;
  for (int64_t item = GlobalThread(); item < items; item += GlobalThreads()) {
    const int64_t first = item / units;
    const int64_t col = (item - first * units) * N;
    const auto key = LoadGlobal<uint64_t>(keys + first);
    if (key == static_cast<uint64_t>(args.table_rows)) continue;
    if (first > 0 && LoadGlobal<uint64_t>(keys + first - 1) == key) continue;
    const int64_t count = args.cols - col < N ? args.cols - col : N;
    const int64_t to = static_cast<int64_t>(key) * args.dtable.row_stride + col;
    C sum[N] = {};
    if (args.mode == WriteMode::kAccumulate) {
      LoadVector(args.dtable.data, args.dtable_dtype, to, 1, count, sum);
    }
    for (int64_t i = first;
         i < args.rows && LoadGlobal<uint64_t>(keys + i) == key; ++i) {
      C grad[N];
      LoadVector(args.grad.data, args.dtype,
                 LoadGlobal<int64_t>(rows + i) * args.grad.row_stride + col, 1,
                 count, grad);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += grad[j];
    }
    StoreVector<false>(args.dtable.data, args.dtable_dtype, to, count, sum);
  }
}

/// The four arrays of the sort, then its workspace.
struct EmbeddingLayout {
  explicit EmbeddingLayout(int64_t rows)
      : array_bytes((rows * 8 + 63) / 64 * 64),
        bytes(rows == 0 ? 0
                        : 4 * array_bytes + StableSortWorkspaceBytes(1, rows)) {
  }
  int64_t array_bytes;
  int64_t bytes;
};

}  // namespace

void CudaEmbedding(const EmbeddingArgs& args, KernelContext& context) {
  const int64_t size = SizeOf(args.dtype);
  const auto launch = [&](auto zero) {
    using T = decltype(zero);
    const int64_t per_unit = int64_t{sizeof(T)} / size;
    const int64_t units = args.cols / per_unit;
    LaunchKernel("embedding", &EmbeddingKernel<T>,
                 GeometryOfItems(args.rows * units), context, args, units,
                 args.table.row_stride / per_unit,
                 args.out.row_stride / per_unit);
  };
  if (args.cols % VectorWidthOf(args.dtype) == 0 &&
      HasVectors(args.table, args.dtype) && HasVectors(args.out, args.dtype)) {
    return launch(Bytes16{});
  }
  switch (size) {
    case 1:
      return launch(uint8_t{});
    case 2:
      return launch(uint16_t{});
    case 4:
      return launch(uint32_t{});
    default:
      return launch(uint64_t{});
  }
}

int64_t CudaEmbeddingBackwardWorkspaceBytes(const EmbeddingBackwardArgs& args) {
  return EmbeddingLayout(args.rows).bytes;
}

void CudaEmbeddingBackward(const EmbeddingBackwardArgs& args,
                           KernelContext& context) {
  CH_CHECK(IsFloatingPoint(args.dtype))
      << "embedding_backward kernel of " << Name(args.dtype);
  if (args.mode == WriteMode::kOverwrite) {
    FillArgs fill;
    fill.shape = {2, {args.table_rows, args.cols}};
    fill.out = {
        args.dtable.data, args.dtable_dtype, {args.dtable.row_stride, 1}};
    CudaFill(fill, context);
  }
  if (args.rows == 0 || args.cols == 0 || args.table_rows == 0) return;
  const EmbeddingLayout layout(args.rows);
  auto* const memory = static_cast<char*>(args.workspace);
  StableSortArgs sort;
  sort.segments = 1;
  sort.length = args.rows;
  auto* const keys = reinterpret_cast<uint64_t*>(memory);
  auto* const rows = reinterpret_cast<int64_t*>(memory + layout.array_bytes);
  sort.keys = keys;
  sort.values = rows;
  sort.sorted_keys =
      reinterpret_cast<uint64_t*>(memory + 2 * layout.array_bytes);
  sort.sorted_values =
      reinterpret_cast<int64_t*>(memory + 3 * layout.array_bytes);
  sort.workspace = memory + 4 * layout.array_bytes;
  sort.key_bits = 1;
  while (sort.key_bits < 63 &&
         (int64_t{1} << sort.key_bits) <= args.table_rows) {
    ++sort.key_bits;
  }
  LaunchKernel("embedding_keys", &KeysKernel, GeometryOfItems(args.rows),
               context, args, keys, rows);
  StableSort(sort, context);
  const bool vectors =
      HasVectors(args.grad, args.dtype) &&
      IsVectorAligned(args.dtable.data, args.dtable_dtype,
                      args.dtable.row_stride, VectorWidthOf(args.dtype));
  DispatchRows(args.dtype, vectors, [&](auto zero, auto width) {
    const int64_t units = (args.cols + width - 1) / width;
    LaunchKernel("embedding_backward",
                 &SumRowsKernel<decltype(zero), decltype(width)::value>,
                 GeometryOfItems(args.rows * units), context, args,
                 static_cast<const uint64_t*>(sort.sorted_keys),
                 static_cast<const int64_t*>(sort.sorted_values));
  });
}

}  // namespace crosshatch::internal
