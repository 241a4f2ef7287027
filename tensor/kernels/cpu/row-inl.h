// SPDX-License-Identifier: Apache-2.0

/// \file
/// Reads, writes and reduces one row of contiguous elements of any floating
/// point dtype, in pieces of at most kReduceRun elements of the compute type T.

#if defined(CROSSHATCH_TENSOR_KERNELS_CPU_ROW_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef CROSSHATCH_TENSOR_KERNELS_CPU_ROW_INL_H_
#undef CROSSHATCH_TENSOR_KERNELS_CPU_ROW_INL_H_
#else
#define CROSSHATCH_TENSOR_KERNELS_CPU_ROW_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "crosshatch/tensor/kernels/cpu/reduce_run-inl.h"
#include "crosshatch/tensor/kernels/cpu/staging-inl.h"
#include "crosshatch/tensor/kernels/cpu/vector_math-inl.h"
#include "crosshatch/tensor/kernels/kernel_table.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace crosshatch {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// A row to read; null if it has no elements.
template <typename T>
class RowReader {
 public:
  RowReader(const RowsInput& rows, DType dtype, int64_t row)
      : RowReader(rows.data, dtype, row * rows.row_stride) {}
  RowReader(const void* data, DType dtype, int64_t offset)
      : data_(data == nullptr ? nullptr
                              : internal::ElementAt(data, dtype, offset)),
        dtype_(dtype) {}

  /// Elements [start, start + count), count <= kReduceRun; valid until the next
  /// call.
  const T* Piece(int64_t start, int64_t count) {
    return Staged(internal::ElementAt(data_, dtype_, start), dtype_, count,
                  buffer_);
  }

 private:
  const void* const data_;
  const DType dtype_;
  HWY_ALIGN T buffer_[kReduceRun];
};

/// A row to write; null if it has no elements.
template <typename T>
class RowWriter {
 public:
  RowWriter(const RowsOutput& rows, DType dtype, int64_t row)
      : data_(
            rows.data == nullptr
                ? nullptr
                : internal::ElementAt(rows.data, dtype, row * rows.row_stride)),
        dtype_(dtype) {}

  /// Returns the memory for computing elements from `start` on.
  T* Begin(int64_t start) {
    return dtype_ == DTypeOf<T> ? static_cast<T*>(data_) + start : buffer_;
  }
  /// Writes the computed elements.
  void End(int64_t start, int64_t count) {
    if (dtype_ == DTypeOf<T>) return;
    StoreRun(buffer_, internal::ElementAt(data_, dtype_, start), dtype_, 1,
             count);
  }

 private:
  void* const data_;
  const DType dtype_;
  HWY_ALIGN T buffer_[kReduceRun];
};

/// Calls body(start, count) for each piece of a row.
template <typename F>
HWY_INLINE void ForPieces(int64_t cols, F&& body) {
  for (int64_t start = 0; start < cols; start += kReduceRun) {
    body(start, std::min(kReduceRun, cols - start));
  }
}

/// Reduces a row by the tree of reduce_run-inl.h.
template <typename T>
T ReduceRow(const Reduction<T>& op, RowReader<T>& row, int64_t cols) {
  PairwiseStack<T> stack(op);
  ForPieces(cols, [&](int64_t start, int64_t count) HWY_ATTR {
    stack.Push(op.run(row.Piece(start, count), count));
  });
  return stack.Total();
}

/// Sum of exp(row - shift); shift is the row's maximum.
template <typename T>
T SumExpRow(RowReader<T>& row, int64_t cols, T shift) {
  HWY_ALIGN T buffer[kReduceRun];
  PairwiseStack<T> stack(kReduction<SumOp, T>);
  ForPieces(cols, [&](int64_t start, int64_t count) HWY_ATTR {
    MapRun(
        [shift](auto d, auto x) HWY_ATTR {
          return ExpOfNonPositive(d, hn::Sub(x, hn::Set(d, shift)));
        },
        buffer, count, row.Piece(start, count));
    stack.Push(ReduceRun<SumOp>(buffer, count));
  });
  return stack.Total();
}

}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();

#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_ROW_INL_H_
