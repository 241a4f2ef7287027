// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_LAUNCH_H_
#define CROSSHATCH_TENSOR_OPS_LAUNCH_H_

/// \file
/// From local tensors to kernel arguments, and the one place that issues them.

#include <cstdint>

#include "crosshatch/tensor/allocator.h"
#include "crosshatch/tensor/kernels/kernel_table.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/shape.h"
#include "crosshatch/tensor/stream.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::internal {

/// Issues kernels().*kernel to the current stream; nothing in a dry run. The
/// args are copied: they hold pointers and plain values.
template <typename Args>
void Launch(void (*KernelTable::*kernel)(const Args&, KernelContext&),
            const Args& args) {
  RankContext& context = RankContext::Current();
  if (context.device().is_meta()) return;
  context.current_stream().Launch([args, run = context.kernels().*kernel](
                                      KernelContext& on) { run(args, on); });
}

/// As Launch, of a kernel that ends the process where an index names nothing. A
/// poisoned rank skips it: its indices may be what a failed collective did not
/// write, and the error would be lost with the process.
template <typename Args>
void LaunchChecked(void (*KernelTable::*kernel)(const Args&, KernelContext&),
                   const Args& args) {
  RankContext& context = RankContext::Current();
  if (context.device().is_meta()) return;
  context.current_stream().Launch(
      [args, run = context.kernels().*kernel, &context](KernelContext& on) {
        if (!context.poisoned()) run(args, on);
      });
}

/// A lease for one kernel: it may end as soon as the kernel is issued.
Block Workspace(int64_t bytes);

KernelShape ToKernelShape(ShapeView sizes, const char* op);
/// `tensor` broadcast to `sizes`.
KernelInput BroadcastInput(const Tensor& tensor, ShapeView sizes);
/// `tensor` of its own sizes.
KernelInput Input(const Tensor& tensor);
KernelOutput Output(const Tensor& tensor);

/// A tensor seen as a matrix of contiguous rows: the leading dims folded.
struct Rows {
  Tensor tensor;  ///< What `data` points into.
  int64_t rows = 1;
  int64_t cols = 1;
  int64_t row_stride = 0;

  RowsInput input() const { return {tensor.raw_data(), row_stride}; }
  RowsOutput output() const { return {tensor.raw_data(), row_stride}; }
};
/// Of a tensor of at least one dim; a copy if its strides do not fold.
Rows ToRows(const Tensor& tensor);

/// `tensor`, or a contiguous copy of it, counted as copied bytes.
Tensor Dense(const Tensor& tensor);

/// Copies `src` to `dst` (or adds it), converting; src broadcasts.
void LaunchCopy(const Tensor& dst, const Tensor& src,
                WriteMode mode = WriteMode::kOverwrite);
void LaunchFill(const Tensor& dst, double value);

/// Whether dims [first, last) of the view fold into one dim with one stride.
bool Folds(ShapeView sizes, ShapeView strides, int first, int last);

/// All sizes but the last.
inline ShapeView LeadingSizes(ShapeView sizes) {
  return sizes.subspan(0, sizes.size() - 1);
}

/// Checks that floating point `a` and `b` have one dtype.
void CheckSameDType(const char* op, const Tensor& a, const Tensor& b);
void CheckFloating(const char* op, const Tensor& a);
/// Checks that class or row indices are i32, i64 or u16.
void CheckIndices(const char* op, const Tensor& indices);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_OPS_LAUNCH_H_
