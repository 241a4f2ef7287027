// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_ROW_CUH_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_ROW_CUH_

/// \file
/// Rows that a block reads once and processes several times.

#include <cstdint>
#include <type_traits>

#include "crosshatch/tensor/kernels/cuda/element.cuh"
#include "crosshatch/tensor/kernels/cuda/elementwise.cuh"
#include "crosshatch/tensor/kernels/row_kernels.h"

namespace crosshatch::internal {

/// Part of a row: `count` of N columns from `col` on.
struct Columns {
  int64_t col;
  int64_t count;
};

/// The vectors of N columns that the calling thread has of a row of `cols`,
/// block by block. It may keep the first K of them.
template <int N, int K>
struct RowVectors {
  int64_t cols;

  /// Calls f(k, columns) for those kept, k < K; the loop unrolls, so that
  /// arrays indexed by k stay in registers.
  template <typename F>
  __device__ __forceinline__ void ForKept(F f) const {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int64_t col = (threadIdx.x + int64_t{k} * blockDim.x) * N;
      if (col < cols) f(k, Columns{col, cols - col < N ? cols - col : N});
    }
  }
  /// Calls f(columns) for the others; rows that fit have none.
  template <typename F>
  __device__ __forceinline__ void ForOthers(F f) const {
    const int64_t step = int64_t{blockDim.x} * N;
    for (int64_t col = threadIdx.x * int64_t{N} + K * step; col < cols;
         col += step) {
      f(Columns{col, cols - col < N ? cols - col : N});
    }
  }
};

/// The start of a row.
struct RowStart {
  const void* data;
  int64_t first;
};

/// The same row of M matrices, which is read from memory the first time and
/// from registers later, as far as it fits there.
template <typename C, int N, int K, int M>
class CachedRows {
 public:
  __device__ CachedRows(const RowStart (&rows)[M], DType dtype, int64_t cols)
      : dtype_(dtype), vectors_{cols} {
    for (int m = 0; m < M; ++m) rows_[m] = rows[m];
  }

  /// f(values, columns), values a C[M][N]: reads from memory, and keeps.
  template <typename F>
  __device__ __forceinline__ void First(F f) {
    FirstKept([&](int, const C(&values)[M][N], Columns columns) {
      f(values, columns);
    });
    AgainOthers(f);
  }
  template <typename F>
  __device__ __forceinline__ void Again(F f) const {
    AgainKept([&](int, const C(&values)[M][N], Columns columns) {
      f(values, columns);
    });
    AgainOthers(f);
  }

  /// \name Those that are kept, f(k, values, columns), and those that are not
  /// @{
  template <typename F>
  __device__ __forceinline__ void FirstKept(F f) {
    vectors_.ForKept([&](int k, Columns columns) {
      Load(columns, kept_[k]);
      f(k, kept_[k], columns);
    });
  }
  template <typename F>
  __device__ __forceinline__ void AgainKept(F f) const {
    vectors_.ForKept([&](int k, Columns columns) { f(k, kept_[k], columns); });
  }
  template <typename F>
  __device__ __forceinline__ void AgainOthers(F f) const {
    vectors_.ForOthers([&](Columns columns) {
      C values[M][N];
      Load(columns, values);
      f(values, columns);
    });
  }
  /// @}

 private:
  __device__ __forceinline__ void Load(Columns columns,
                                       C (&values)[M][N]) const {
#pragma unroll
    for (int m = 0; m < M; ++m) {
      LoadVector(rows_[m].data, dtype_, rows_[m].first + columns.col, 1,
                 columns.count, values[m]);
    }
  }

  RowStart rows_[M];
  const DType dtype_;
  const RowVectors<N, K> vectors_;
  C kept_[K][M][N];
};

/// Vectors of a row that a thread keeps.
inline constexpr int kKeptVectors = 4;

/// Calls f(C(), std::integral_constant<int, N>()): the compute type of `dtype`,
/// and the columns that a thread processes at once, 1 unless `vectors`.
template <typename F>
void DispatchRows(DType dtype, bool vectors, F&& f) {
  if (dtype == DType::kFloat64) {
    if (vectors) return f(double{}, std::integral_constant<int, 2>());
    return f(double{}, std::integral_constant<int, 1>());
  }
  if (!vectors) return f(float{}, std::integral_constant<int, 1>());
  if (dtype == DType::kFloat32) {
    return f(float{}, std::integral_constant<int, 4>());
  }
  return f(float{}, std::integral_constant<int, 8>());
}

/// Returns whether vectors can be loaded from all rows of `rows`.
inline bool HasVectors(const RowsInput& rows, DType dtype) {
  return IsVectorAligned(rows.data, dtype, rows.row_stride,
                         VectorWidthOf(dtype));
}
inline bool HasVectors(const RowsOutput& rows, DType dtype) {
  return HasVectors(RowsInput{rows.data, rows.row_stride}, dtype);
}

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_ROW_CUH_
