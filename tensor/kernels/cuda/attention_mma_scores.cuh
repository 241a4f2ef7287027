// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_MMA_SCORES_CUH_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_MMA_SCORES_CUH_

/// \file
/// Converts a lane's products of a tile to scores (attention_mma.cuh). Sets of
/// a lane's elements are words with a bit for each: number 4 n + i. Loops over
/// these bits are not unrolled, because their bodies are long and rare.

#include <cstdint>
#include <limits>

#include "crosshatch/tensor/kernels/cuda/attention_mma.cuh"
#include "crosshatch/tensor/kernels/cuda/attention_scores.cuh"

namespace crosshatch::internal::attention {

inline __device__ bool Has(uint32_t set, int n, int i) {
  return (set >> (4 * n + i) & 1) != 0;
}

/// The query and the key of an element.
struct Pair {
  int64_t query;
  int64_t key;
};
/// For rows of queries and columns of keys, and the reverse. Both have the
/// first row and column.
struct QueriesByKeys {
  int64_t row;
  int64_t col;
  __device__ Pair operator()(int n, int i) const {
    return {row + RowOf(i), col + ColOf(n, i)};
  }
};
struct KeysByQueries {
  int64_t row;
  int64_t col;
  __device__ Pair operator()(int n, int i) const {
    return {col + ColOf(n, i), row + RowOf(i)};
  }
};

/// Returns those of `shown` that the mask allows.
template <int kCols, typename PairAt>
__device__ uint32_t ShownByMask(const AttentionArgs& args, uint32_t shown,
                                int64_t batch, int64_t head,
                                const PairAt& pair_at) {
  if (args.mask.data == nullptr) return shown;
#pragma unroll 1
  for (int e = 0; e < kCols / 2; ++e) {
    if (!Has(shown, 0, e)) continue;
    const Pair at = pair_at(e / 4, e % 4);
    if (MaskOf<float>(args, batch, head, at.query, at.key) ==
        -std::numeric_limits<float>::infinity()) {
      shown &= ~(1u << e);
    }
  }
  return shown;
}

/// Returns those of `shown` that dropout keeps.
template <int kCols, typename PairAt>
__device__ uint32_t KeptOf(const AttentionArgs& args,
                           const Dropped<float>& dropped, uint32_t shown,
                           int64_t batch, int64_t head, const PairAt& pair_at) {
  if (args.dropout == 0) return shown;
#pragma unroll 1
  for (int e = 0; e < kCols / 2; ++e) {
    if (!Has(shown, 0, e)) continue;
    const Pair at = pair_at(e / 4, e % 4);
    if (!dropped.Keeps(batch, head, at.query, at.key)) shown &= ~(1u << e);
  }
  return shown;
}

/// Clamps an index to the kCount ones from `first` on.
template <int kCount>
__device__ __forceinline__ int Within(int64_t place, int64_t first) {
  place -= first;
  return place < 0 ? 0 : place > kCount ? kCount : static_cast<int>(place);
}

/// Returns the elements within the runs of their rows, which are queries.
template <int kKeys>
__device__ uint32_t ShownByRuns(const KeyRun (&runs)[2], int64_t key) {
  uint32_t shown = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int begin = Within<kKeys>(runs[i / 2].begin, key);
    const int end = Within<kKeys>(runs[i / 2].end, key);
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      const int col = ColOf(n, i);
      if (col >= begin && col < end) shown |= 1u << (4 * n + i);
    }
  }
  return shown;
}

/// Returns the elements within the runs of their columns, which are queries:
/// lane `first_col` + c has the run of column c, [begin, end) of the rows,
/// which are keys.
template <int kQueries>
__device__ uint32_t ShownByColumns(int begin, int end, int first_col) {
  uint32_t shown = 0;
#pragma unroll
  for (int n = 0; n < kQueries / 8; ++n) {
#pragma unroll
    for (int col = 0; col < 2; ++col) {
      const int from = first_col + ColOf(n, col);
      const int col_begin = __shfl_sync(kFullWarp, begin, from);
      const int col_end = __shfl_sync(kFullWarp, end, from);
#pragma unroll
      for (int i = col; i < 4; i += 2) {
        if (RowOf(i) >= col_begin && RowOf(i) < col_end) {
          shown |= 1u << (4 * n + i);
        }
      }
    }
  }
  return shown;
}

/// What a warp's queries attend to: each of the keys [all_begin, all_end) by
/// all of them, and those outside of [any_begin, any_end) by none.
struct SeenKeys {
  int any_begin;
  int any_end;
  int all_begin;
  int all_end;

  __device__ __forceinline__ bool SeesAny(int key, int keys) const {
    return any_begin < key + keys && key < any_end;
  }
  __device__ __forceinline__ bool SeesAll(int key, int keys) const {
    return all_begin <= key && key + keys <= all_end;
  }
};

/// Returns it for the kMmaRows queries from `row` on, of which lanes have
/// `runs`. Queries beyond the last one do not count.
__device__ inline SeenKeys SeenByRows(const AttentionArgs& args, int64_t row,
                                      const KeyRun (&runs)[2]) {
  constexpr int kLast = std::numeric_limits<int>::max();
  SeenKeys seen = {kLast, 0, 0, kLast};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (row + RowOf(2 * half) >= args.q_len) continue;
    const int begin = static_cast<int>(runs[half].begin);
    const int end = static_cast<int>(runs[half].end);
    if (begin < end) {
      seen.any_begin = SmallerOf(seen.any_begin, begin);
      seen.any_end = LargerOf(seen.any_end, end);
    }
    seen.all_begin = LargerOf(seen.all_begin, begin);
    seen.all_end = SmallerOf(seen.all_end, end);
  }
  const auto smaller = [](int a, int b) { return SmallerOf(a, b); };
  const auto larger = [](int a, int b) { return LargerOf(a, b); };
  return {WarpReduce(seen.any_begin, smaller), WarpReduce(seen.any_end, larger),
          WarpReduce(seen.all_begin, larger),
          WarpReduce(seen.all_end, smaller)};
}

/// Sets scores of keys outside of the runs of their rows to -inf.
template <int kKeys>
__device__ __forceinline__ void HideOthers(const KeyRun (&runs)[2], int key,
                                           MmaSums<kKeys>& scores) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int col = key + ColOf(0, i);
    const int begin = static_cast<int>(runs[i / 2].begin) - col;
    const int end = static_cast<int>(runs[i / 2].end) - col;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      if (8 * n < begin || 8 * n >= end) {
        scores[n][i] = -std::numeric_limits<float>::infinity();
      }
    }
  }
}

/// Sets weights that are not in `kept` to 0.
template <int kCols>
__device__ __forceinline__ void ZeroOthers(uint32_t kept,
                                           MmaSums<kCols>& weights) {
#pragma unroll
  for (int n = 0; n < kCols / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!Has(kept, n, i)) weights[n][i] = 0.0f;
    }
  }
}

/// Converts products to scores, minus the shifts of their queries; -inf if not
/// in `shown`.
/// \param shift_at called as shift_at(n, i)
template <int kCols, typename PairAt, typename ShiftAt>
__device__ void MakeScores(const AttentionArgs& args, uint32_t shown,
                           int64_t batch, int64_t head, const PairAt& pair_at,
                           const ShiftAt& shift_at, MmaSums<kCols>& products) {
  constexpr int kSums = kCols / 8;
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  if (args.slopes == nullptr && !HasShifts(args)) {
    const auto scale = static_cast<float>(args.scale);
#pragma unroll
    for (int n = 0; n < kSums; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = products[n][i];
        x = Has(shown, n, i) ? x * scale : kNothing;
      }
    }
    return;
  }
  // Registers cannot be indexed, so all sums rotate through the first position.
#pragma unroll 1
  for (int n = 0; n < kSums; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float x = products[0][i];
#pragma unroll
      for (int to = 0; to + 1 < kSums; ++to) {
        products[to][i] = products[to + 1][i];
      }
      const Pair at = pair_at(n, i);
      products[kSums - 1][i] = Has(shown, n, i)
                                   ? ScoreOfSeen(args, batch, head, at.query,
                                                 at.key, shift_at(n, i), x)
                                   : kNothing;
    }
  }
}

}  // namespace crosshatch::internal::attention

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_MMA_SCORES_CUH_
