// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cpu/targets.h"
// Before the headers that are compiled once for each target.
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/kernels/cpu/gemm_tile.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "crosshatch/tensor/kernels/cpu/gemm_tile-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace crosshatch {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

/// Writes or adds a b over k to c (kRows, kVectors vectors), which stays in
/// registers.
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
  // One vector if vectors are long, two if registers are few.
  const hn::CappedTag<T, kGemmColumns> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t j = 0;
  for (; j + 2 * lanes <= n; j += 2 * lanes) {
    GemmRegisters<kRows, 2, kAdd>(d, k, a, a_row, a_col, b + j, b_row, c + j,
                                  c_row);
  }
  // A remainder exists only if one vector has kGemmColumns elements.
  if (j < n) {
    GemmRegisters<kRows, 1, kAdd>(d, k, a, a_row, a_col, b + j, b_row, c + j,
                                  c_row);
  }
}

}  // namespace

template <bool kAdd, TileOrder kOrder, typename T>
void GemmTile(int64_t m, int64_t n, int64_t k, const T* a, int64_t a_step,
              const T* b, int64_t b_row, T* c, int64_t c_row) {
  constexpr bool kRows = kOrder == TileOrder::kRows;
  const int64_t a_row = kRows ? a_step : 1;
  const int64_t a_col = kRows ? 1 : a_step;
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

template void GemmTile<false, TileOrder::kRows>(int64_t, int64_t, int64_t,
                                                const float*, int64_t,
                                                const float*, int64_t, float*,
                                                int64_t);
template void GemmTile<false, TileOrder::kRows>(int64_t, int64_t, int64_t,
                                                const double*, int64_t,
                                                const double*, int64_t, double*,
                                                int64_t);
template void GemmTile<true, TileOrder::kRows>(int64_t, int64_t, int64_t,
                                               const float*, int64_t,
                                               const float*, int64_t, float*,
                                               int64_t);
template void GemmTile<true, TileOrder::kRows>(int64_t, int64_t, int64_t,
                                               const double*, int64_t,
                                               const double*, int64_t, double*,
                                               int64_t);
template void GemmTile<true, TileOrder::kColumns>(int64_t, int64_t, int64_t,
                                                  const float*, int64_t,
                                                  const float*, int64_t, float*,
                                                  int64_t);
template void GemmTile<true, TileOrder::kColumns>(int64_t, int64_t, int64_t,
                                                  const double*, int64_t,
                                                  const double*, int64_t,
                                                  double*, int64_t);

}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();
