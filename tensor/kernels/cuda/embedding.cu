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

/// Sorted rows are summed in pieces of this many, so that the rows of an id
/// that occurs often are summed in parallel. Pieces do not depend on the
/// device.
constexpr int64_t kPieceRows = 32;

/// Sorted gradient rows, and the sums of pieces of an id's rows that reach over
/// the bounds of pieces: for each piece that of the id at its start, continued
/// from the piece before, and that of the id at its end, continued in the next.
template <typename C>
struct SortedRows {
  const uint64_t* keys;
  const int64_t* rows;
  C* partial;  // [pieces][2][units * N]
  int64_t units;

  __device__ __forceinline__ uint64_t Key(int64_t i) const {
    return LoadGlobal<uint64_t>(keys + i);
  }
  template <int N>
  __device__ __forceinline__ C* Partial(int64_t piece, int end,
                                        int64_t unit) const {
    return partial + ((piece * 2 + end) * units + unit) * N;
  }
};

template <int N, typename C>
__device__ __forceinline__ void LoadPartial(const C* from, C (&values)[N]) {
  constexpr int kPack = N * sizeof(C) > 16 ? 16 / int{sizeof(C)} : N;
#pragma unroll
  for (int i = 0; i < N; i += kPack) {
    const auto pack = LoadGlobal<Pack<C, kPack>>(from + i);
#pragma unroll
    for (int j = 0; j < kPack; ++j) values[i + j] = pack.values[j];
  }
}
template <int N, typename C>
__device__ __forceinline__ void StorePartial(C* to, const C (&values)[N]) {
  constexpr int kPack = N * sizeof(C) > 16 ? 16 / int{sizeof(C)} : N;
#pragma unroll
  for (int i = 0; i < N; i += kPack) {
    Pack<C, kPack> pack;
#pragma unroll
    for (int j = 0; j < kPack; ++j) pack.values[j] = values[i + j];
    StoreGlobal(to + i, pack);
  }
}

/// Adds N columns of the sum to the row of `key`, or stores them there.
template <int N, typename C>
__device__ __forceinline__ void WriteSum(const EmbeddingBackwardArgs& args,
                                         uint64_t key, int64_t col,
                                         C (&sum)[N]) {
  const int64_t count = args.cols - col < N ? args.cols - col : N;
  const int64_t to = static_cast<int64_t>(key) * args.dtable.row_stride + col;
  if (args.mode == WriteMode::kAccumulate) {
    C old[N];
    LoadVector(args.dtable.data, args.dtable_dtype, to, 1, count, old);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] += old[j];
  }
  StoreVector<false>(args.dtable.data, args.dtable_dtype, to, count, sum);
}

/// Each thread sums N columns of the gradient rows of one id in one piece, in
/// order. The thread at the first of these rows does so.
template <typename C, int N>
__global__ void __launch_bounds__(256)
    SumRowsKernel(EmbeddingBackwardArgs args, SortedRows<C> sorted) {
  const int64_t items = args.rows * sorted.units;
  for (int64_t item = GlobalThread(); item < items; item += GlobalThreads()) {
    const int64_t first = item / sorted.units;
    const int64_t unit = item - first * sorted.units;
    const int64_t col = unit * N;
    const uint64_t key = sorted.Key(first);
    if (key == static_cast<uint64_t>(args.table_rows)) continue;
    const bool is_continued = first > 0 && sorted.Key(first - 1) == key;
    if (is_continued && first % kPieceRows != 0) continue;
    const int64_t piece = first / kPieceRows;
    const int64_t end = (piece + 1) * kPieceRows < args.rows
                            ? (piece + 1) * kPieceRows
                            : args.rows;
    const int64_t count = args.cols - col < N ? args.cols - col : N;
    C sum[N] = {};
    int64_t i = first;
    for (; i < end && sorted.Key(i) == key; ++i) {
      C grad[N];
      LoadVector(
          args.grad.data, args.dtype,
          LoadGlobal<int64_t>(sorted.rows + i) * args.grad.row_stride + col, 1,
          count, grad);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += grad[j];
    }
    if (is_continued) {
      StorePartial(sorted.template Partial<N>(piece, 0, unit), sum);
    } else if (i == end && end < args.rows && sorted.Key(end) == key) {
      StorePartial(sorted.template Partial<N>(piece, 1, unit), sum);
    } else {
      WriteSum(args, key, col, sum);
    }
  }
}

/// Each thread sums, in order, the pieces of N columns of an id whose rows
/// begin in one piece and reach beyond it.
template <typename C, int N>
__global__ void __launch_bounds__(256)
    SumPiecesKernel(EmbeddingBackwardArgs args, SortedRows<C> sorted) {
  const int64_t pieces = (args.rows + kPieceRows - 1) / kPieceRows;
  const int64_t items = (pieces - 1) * sorted.units;
  for (int64_t item = GlobalThread(); item < items; item += GlobalThreads()) {
    int64_t piece = item / sorted.units;
    const int64_t unit = item - piece * sorted.units;
    const uint64_t key = sorted.Key((piece + 1) * kPieceRows - 1);
    if (key == static_cast<uint64_t>(args.table_rows) ||
        sorted.Key((piece + 1) * kPieceRows) != key ||
        (piece > 0 && sorted.Key(piece * kPieceRows - 1) == key)) {
      continue;
    }
    C sum[N];
    LoadPartial(sorted.template Partial<N>(piece, 1, unit), sum);
#pragma unroll 4
    for (++piece; piece < pieces && sorted.Key(piece * kPieceRows) == key;
         ++piece) {
      C next[N];
      LoadPartial(sorted.template Partial<N>(piece, 0, unit), next);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += next[j];
    }
    WriteSum(args, key, unit * N, sum);
  }
}

/// The four arrays of the sort, the sums of pieces, and the workspace of the
/// sort.
struct EmbeddingLayout {
  explicit EmbeddingLayout(const EmbeddingBackwardArgs& args)
      : array_bytes(Aligned(args.rows * 8)),
        sort_offset(4 * array_bytes +
                    Aligned((args.rows + kPieceRows - 1) / kPieceRows * 2 *
                            (args.cols + VectorWidthOf(args.dtype)) *
                            (args.dtype == DType::kFloat64 ? 8 : 4))),
        bytes(args.rows == 0
                  ? 0
                  : sort_offset + StableSortWorkspaceBytes(1, args.rows)) {}
  static int64_t Aligned(int64_t size) { return (size + 63) / 64 * 64; }

  int64_t array_bytes;
  int64_t sort_offset;
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
  return EmbeddingLayout(args).bytes;
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
  const EmbeddingLayout layout(args);
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
  sort.workspace = memory + layout.sort_offset;
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
    using C = decltype(zero);
    const int64_t units = (args.cols + width - 1) / width;
    const SortedRows<C> sorted = {
        sort.sorted_keys, sort.sorted_values,
        reinterpret_cast<C*>(memory + 4 * layout.array_bytes), units};
    LaunchKernel("embedding_backward",
                 &SumRowsKernel<C, decltype(width)::value>,
                 GeometryOfItems(args.rows * units), context, args, sorted);
    LaunchKernel("embedding_backward_pieces",
                 &SumPiecesKernel<C, decltype(width)::value>,
                 GeometryOfItems((args.rows - 1) / kPieceRows * units), context,
                 args, sorted);
  });
}

}  // namespace crosshatch::internal
