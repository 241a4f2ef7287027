// SPDX-License-Identifier: Apache-2.0

/// \file
/// Products of small matrices that lie in the cache, without packing.

#if defined(CROSSHATCH_TENSOR_KERNELS_CPU_GEMM_TILE_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef CROSSHATCH_TENSOR_KERNELS_CPU_GEMM_TILE_INL_H_
#undef CROSSHATCH_TENSOR_KERNELS_CPU_GEMM_TILE_INL_H_
#else
#define CROSSHATCH_TENSOR_KERNELS_CPU_GEMM_TILE_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace crosshatch {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Columns of b and c come in multiples of this many elements, whatever the
/// instruction set; callers pad with zeros.
constexpr int64_t kGemmColumns = 16;

/// c (kRows, kVectors vectors) (=, +=) a b over k, held in registers.
template <int kRows, int kVectors, bool kAdd, class D, typename T>
HWY_INLINE void GemmRegisters(D d, int64_t k, const T* HWY_RESTRICT a,
                              int64_t a_row, int64_t a_col,
                              const T* HWY_RESTRICT b, int64_t b_row,
                              T* HWY_RESTRICT c, int64_t c_row) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  hn::Vec<D> sum[kRows][kVectors];
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      sum[i][v] = kAdd ? hn::LoadU(d, c + i * c_row + v * lanes) : hn::Zero(d);
    }
  }
  for (int64_t p = 0; p < k; ++p) {
    hn::Vec<D> row[kVectors];
    for (int v = 0; v < kVectors; ++v) row[v] = hn::LoadU(d, b + v * lanes);
    for (int i = 0; i < kRows; ++i) {
      const auto factor = hn::Set(d, a[i * a_row]);
      for (int v = 0; v < kVectors; ++v) {
        sum[i][v] = hn::MulAdd(factor, row[v], sum[i][v]);
      }
    }
    a += a_col;
    b += b_row;
  }
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(sum[i][v], d, c + i * c_row + v * lanes);
    }
  }
}

template <int kRows, bool kAdd, typename T>
HWY_INLINE void GemmRows(int64_t n, int64_t k, const T* a, int64_t a_row,
                         int64_t a_col, const T* b, int64_t b_row, T* c,
                         int64_t c_row) {
  // One vector of it where vectors are long, two where registers are few.
  const hn::CappedTag<T, kGemmColumns> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t j = 0;
  for (; j + 2 * lanes <= n; j += 2 * lanes) {
    GemmRegisters<kRows, 2, kAdd>(d, k, a, a_row, a_col, b + j, b_row, c + j,
                                  c_row);
  }
  // Left over only where one vector is kGemmColumns long.
  if (j < n) {
    GemmRegisters<kRows, 1, kAdd>(d, k, a, a_row, a_col, b + j, b_row, c + j,
                                  c_row);
  }
}

/// c (m, n) = a b, or c += a b with kAdd: a (m, k) of any strides, rows of
/// b (k, n) and c contiguous, n a multiple of kGemmColumns. Each element is
/// summed over k in order.
template <bool kAdd, typename T>
void GemmTile(int64_t m, int64_t n, int64_t k, const T* a, int64_t a_row,
              int64_t a_col, const T* b, int64_t b_row, T* c, int64_t c_row) {
  int64_t i = 0;
  for (; i + 6 <= m; i += 6) {
    GemmRows<6, kAdd>(n, k, a + i * a_row, a_row, a_col, b, b_row,
                      c + i * c_row, c_row);
  }
  if (i + 4 <= m) {
    GemmRows<4, kAdd>(n, k, a + i * a_row, a_row, a_col, b, b_row,
                      c + i * c_row, c_row);
    i += 4;
  }
  for (; i < m; ++i) {
    GemmRows<1, kAdd>(n, k, a + i * a_row, a_row, a_col, b, b_row,
                      c + i * c_row, c_row);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();

#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_GEMM_TILE_INL_H_
