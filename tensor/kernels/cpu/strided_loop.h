// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CPU_STRIDED_LOOP_H_
#define CROSSHATCH_TENSOR_KERNELS_CPU_STRIDED_LOOP_H_

/// \file
/// A loop nest over several strided operands of one shape, with as few dims as
/// the strides allow.

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "crosshatch/tensor/kernels/kernel_table.h"

namespace crosshatch::internal {

inline constexpr int kMaxOperands = 5;

/// Dims are outermost first; there is always at least one. The inner one is
/// called a row.
struct StridedLoop {
  int ndim = 1;
  int operands = 0;
  int64_t sizes[kMaxKernelDims] = {1};
  int64_t strides[kMaxOperands][kMaxKernelDims] = {};

  /// Returns the loop over `shape` with each operand's strides. Dims are
  /// ordered by the strides of operand `order_by`, largest outermost, unless it
  /// is -1. (Elementwise work may run in any order; that of the output is the
  /// cheapest.) Then adjacent dims that all operands can traverse as one are
  /// merged.
  static StridedLoop Make(const KernelShape& shape,
                          std::initializer_list<const int64_t*> strides,
                          int order_by);

  int64_t total() const { return rows() * inner(); }
  int64_t inner() const { return sizes[ndim - 1]; }
  int64_t inner_stride(int operand) const { return strides[operand][ndim - 1]; }
  int64_t rows() const {
    int64_t rows = 1;
    for (int d = 0; d < ndim - 1; ++d) rows *= sizes[d];
    return rows;
  }
};

/// Walks the rows of a loop in row-major order and keeps each operand's offset.
class RowCursor {
 public:
  RowCursor(const StridedLoop& loop, int64_t row) : loop_(loop) {
    for (int d = loop.ndim - 2; d >= 0; --d) {
      index_[d] = row % loop.sizes[d];
      row /= loop.sizes[d];
      for (int o = 0; o < loop.operands; ++o) {
        offsets_[o] += index_[d] * loop.strides[o][d];
      }
    }
  }

  int64_t offset(int operand) const { return offsets_[operand]; }

  void Next() {
    for (int d = loop_.ndim - 2; d >= 0; --d) {
      if (++index_[d] < loop_.sizes[d]) {
        for (int o = 0; o < loop_.operands; ++o) {
          offsets_[o] += loop_.strides[o][d];
        }
        return;
      }
      for (int o = 0; o < loop_.operands; ++o) {
        offsets_[o] -= (loop_.sizes[d] - 1) * loop_.strides[o][d];
      }
      index_[d] = 0;
    }
  }

 private:
  const StridedLoop& loop_;
  int64_t index_[kMaxKernelDims] = {};
  int64_t offsets_[kMaxOperands] = {};
};

/// Cuts a loop into blocks of at most kBlock elements, each either a piece of
/// one row or several whole rows.
struct Blocking {
  static constexpr int64_t kBlock = 1024;

  explicit Blocking(const StridedLoop& loop)
      : inner(loop.inner()),
        rows(loop.rows()),
        splits_rows(inner >= kBlock / 4) {
    if (rows * inner == 0) return;
    if (splits_rows) {
      pieces = (inner + kBlock - 1) / kBlock;
      blocks = rows * pieces;
    } else {
      rows_per_block = kBlock / inner;
      blocks = (rows + rows_per_block - 1) / rows_per_block;
    }
  }

  /// A block: `rows` rows from `row`, `count` elements of each from `start`.
  struct Block {
    int64_t row;
    int64_t rows;
    int64_t start;
    int64_t count;
  };
  Block At(int64_t block) const {
    if (splits_rows) {
      const int64_t start = block % pieces * kBlock;
      return {block / pieces, 1, start, std::min(kBlock, inner - start)};
    }
    const int64_t row = block * rows_per_block;
    return {row, std::min(rows_per_block, rows - row), 0, inner};
  }

  int64_t inner;
  int64_t rows;
  bool splits_rows;
  int64_t pieces = 1;
  int64_t rows_per_block = 1;
  int64_t blocks = 0;
};

/// Element i * to_stride of `to` becomes element i * from_stride of `from`, for
/// i < count; strides count elements, and from_stride may be 0. The runs do not
/// overlap.
void CopyRun(const void* from, int64_t from_stride, void* to, int64_t to_stride,
             DType dtype, int64_t count);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_STRIDED_LOOP_H_
