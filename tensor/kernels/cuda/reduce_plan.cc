// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cuda/reduce_plan.h"

#include <algorithm>
#include <cstdlib>

namespace crosshatch::internal {
namespace {

constexpr int kThreads = 256;
// The threads that fill a device; with fewer, outputs are split into pieces.
constexpr int64_t kEnoughThreads = int64_t{1} << 17;
// Minimum vectors of terms per thread, if possible: threads with fewer mostly
// wait for each other.
constexpr int64_t kFewTerms = 4;
// Minimum terms per thread for which a piece is worth a second kernel.
constexpr int64_t kLeastTerms = 16;
// With more terms, a thread would exceed the contract's number of additions per
// term.
constexpr int64_t kMostTerms = 4096;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Appends a dim within the existing ones, or extends the last of them.
void Append(ReducePlan::Dims& dims, int64_t size, int64_t in, int64_t out) {
  if (size == 1) return;
  const int last = dims.ndim - 1;
  if (last >= 0 && dims.in_strides[last] == in * size &&
      dims.out_strides[last] == out * size) {
    dims.sizes[last] *= size;
    dims.in_strides[last] = in;
    dims.out_strides[last] = out;
    return;
  }
  dims.sizes[dims.ndim] = size;
  dims.in_strides[dims.ndim] = in;
  dims.out_strides[dims.ndim++] = out;
}

int64_t InnerStride(const ReducePlan::Dims& dims) {
  return dims.ndim == 0 ? 0 : std::abs(dims.in_strides[dims.ndim - 1]);
}

/// Returns the width of vectors of terms: if terms are contiguous, and the
/// start of every output and every row is aligned.
int WidthOf(const ReducePlan& plan, const ReduceArgs& args) {
  const ReducePlan::Dims& dims = plan.reduced;
  if (dims.ndim == 0 || dims.in_strides[dims.ndim - 1] != 1) return 1;
  const int width = VectorWidthOf(args.in.dtype);
  const bool floats = IsFloatingPoint(args.in.dtype);
  // Other widths would rarely be used, and each needs another kernel.
  if (!floats || dims.sizes[dims.ndim - 1] % width != 0) return 1;
  if (args.out.dtype == DType::kFloat64 && args.in.dtype != DType::kFloat64) {
    return 1;
  }
  if (!IsVectorAligned(args.in.data, args.in.dtype, 0, width)) return 1;
  const auto aligned = [&](int64_t stride) { return stride % width == 0; };
  return std::all_of(dims.in_strides, dims.in_strides + dims.ndim - 1,
                     aligned) &&
                 std::all_of(plan.kept.in_strides,
                             plan.kept.in_strides + plan.kept.ndim, aligned)
             ? width
             : 1;
}

}  // namespace

ReducePlan MakeReducePlan(const ReduceArgs& args, int64_t most_partials) {
  ReducePlan plan;
  for (int d = 0; d < args.shape.ndim; ++d) {
    const int64_t size = args.shape.sizes[d];
    if (((args.reduced >> d) & 1u) != 0) {
      // Row-major within the reduced dims, like indices.
      Append(plan.reduced, size, args.in.strides[d], 0);
      plan.terms *= size;
    } else {
      Append(plan.kept, size, args.in.strides[d], args.out.strides[d]);
      plan.outputs *= size;
    }
  }
  if (plan.terms == 0) plan.reduced = {};
  plan.terms_per_piece = std::max<int64_t>(plan.terms, 1);
  if (plan.outputs == 0) {
    plan.geometry.blocks = 0;
    return plan;
  }
  plan.width = WidthOf(plan, args);

  // Adjacent outputs, if they are closer in memory than their terms.
  const int64_t threads = std::clamp<int64_t>(
      CeilDiv(plan.outputs * plan.terms, 32) * 32, 32, kThreads);
  int block = 32;
  while (block < threads) block *= 2;
  if (plan.terms <= 1 ||
      (plan.outputs > 1 && plan.width == 1 &&
       (plan.reduced.ndim == 0 ||
        InnerStride(plan.kept) < InnerStride(plan.reduced)))) {
    plan.lanes = 32;
  } else {
    // Few terms get few threads, and a block more outputs.
    int rows = 1;
    while (rows < block && rows * kFewTerms * plan.width < plan.terms) {
      rows *= 2;
    }
    plan.lanes = block / rows;
    plan.terms_first = true;
  }
  const int64_t rows = block / plan.lanes;
  const int64_t groups = CeilDiv(plan.outputs, plan.lanes);

  const int64_t steps = CeilDiv(plan.terms, rows * plan.width);
  int64_t pieces = std::min(CeilDiv(steps, kLeastTerms),
                            CeilDiv(kEnoughThreads, groups * block));
  pieces = std::max(pieces, CeilDiv(steps, kMostTerms));
  pieces = std::clamp<int64_t>(
      pieces, 1, std::max<int64_t>(most_partials / plan.outputs, 1));
  const int64_t steps_per_piece = std::max<int64_t>(CeilDiv(steps, pieces), 1);
  plan.terms_per_piece = steps_per_piece * rows * plan.width;
  plan.pieces = std::max<int64_t>(CeilDiv(plan.terms, plan.terms_per_piece), 1);
  plan.geometry.threads = block;
  plan.geometry.blocks = std::min(groups * plan.pieces, (int64_t{1} << 31) - 1);
  return plan;
}

}  // namespace crosshatch::internal
