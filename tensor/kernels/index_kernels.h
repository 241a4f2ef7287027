// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_INDEX_KERNELS_H_
#define CROSSHATCH_TENSOR_KERNELS_INDEX_KERNELS_H_

/// \file
/// Kernels that depend on indices: elements selected by a tensor of indices,
/// and values determined by an element's index.

#include <cstdint>
#include <optional>

#include "crosshatch/tensor/kernels/operands.h"

namespace crosshatch {

/// The indexed dim of GatherArgs and ScatterArgs. The local tensor has its
/// elements [first, first + count).
struct IndexedDim {
  /// In messages.
  const char* op = nullptr;
  int dim = 0;
  int64_t first = 0;
  int64_t count = 0;
  /// Every index must be in [0, bound), checked.
  int64_t bound = 0;
};

/// out[i.., j, k..] = src[i.., index[i.., j, k..] - first, k..], zero bytes if
/// the index is outside of [first, first + count).
struct GatherArgs {
  /// The shape of index and out. src has the same sizes except for `count` in
  /// the dim.
  KernelShape shape;
  IndexedDim at;
  KernelInput index;  ///< i32, i64 or u16.
  KernelInput src;
  KernelOutput out;  ///< Of src's dtype: any.
};

/// out[i.., index[i.., j, k..] - first, k..] (=, +=) src[i.., j, k..], j
/// ascending: of equal indices the last one is written, and sums are in order.
/// Indices outside of [first, first + count) write nothing.
struct ScatterArgs {
  /// The shape of index and src. out has the same sizes except for `count` in
  /// the dim.
  KernelShape shape;
  IndexedDim at;
  KernelInput index;  ///< i32, i64 or u16.
  KernelInput src;
  /// Of src's dtype, any. kAccumulate: f32, f64, i32 or i64, and f32 takes
  /// 16-bit floats.
  KernelOutput out;
  WriteMode mode = WriteMode::kOverwrite;
};

/// out = x / (1 - p) if the element's uniform random number u is at least p,
/// else 0. u is that of RandomKind::kUniform for (key, stream) and the
/// element's index in the global tensor. p is rounded up to a multiple of
/// 2^-24.
struct DropoutArgs {
  KernelShape shape;
  KernelInput x;        ///< Floating point.
  void* out = nullptr;  ///< Contiguous, of x's dtype.
  double p = 0;
  uint64_t key = 0;
  uint64_t stream = 0;
  /// The offsets of x in the global tensor.
  int64_t offsets[kMaxKernelDims] = {};
  int64_t global_sizes[kMaxKernelDims] = {};
};

/// Checks that every index is in [0, bound) or `ignored`: "op: id 7 at 3 is out
/// of range: there are 5 rows".
struct CheckIndexRangeArgs {
  const char* op = nullptr;
  const char* index = nullptr;  ///< What an index is called ...
  const char* named = nullptr;  ///< ... and what it names, in the plural.
  int64_t count = 0;
  const void* indices = nullptr;  ///< Contiguous.
  DType dtype = DType::kInt64;    ///< i32, i64 or u16.
  int64_t bound = 0;
  std::optional<int64_t> ignored = std::nullopt;
};

/// The list of this family (kernel_table.h).
#define CH_INDEX_KERNELS(K, W, d)     \
  K(d, gather, Gather, GatherArgs)    \
  K(d, scatter, Scatter, ScatterArgs) \
  K(d, dropout, Dropout, DropoutArgs) \
  K(d, check_index_range, CheckIndexRange, CheckIndexRangeArgs)

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_KERNELS_INDEX_KERNELS_H_
