// SPDX-License-Identifier: Apache-2.0

/// \file
/// Products of small matrices that are in the cache, without packing.

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

/// Columns of b and c come in multiples of this many elements, whatever the
/// instruction set; callers pad with zeros.
constexpr int64_t kGemmColumns = 16;

/// The memory order of a: contiguous rows or contiguous columns.
enum class TileOrder { kRows, kColumns };

/// c (m, n) = a b, or c += a b with kAdd: rows (or columns) of a (m, k) are
/// a_step apart, rows of b (k, n) and c contiguous, n a multiple of
/// kGemmColumns. Each element is summed over k in order. T is float or double.
template <bool kAdd, TileOrder kOrder, typename T>
void GemmTile(int64_t m, int64_t n, int64_t k, const T* a, int64_t a_step,
              const T* b, int64_t b_row, T* c, int64_t c_row);

}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();

#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_GEMM_TILE_INL_H_
