// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cuda/reduce_config.h"

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
void Append(ReduceConfig::Dims& dims, int64_t size, int64_t in, int64_t out) {
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

int64_t InnerStride(const ReduceConfig::Dims& dims) {
  return dims.ndim == 0 ? 0 : std::abs(dims.in_strides[dims.ndim - 1]);
}

/// Returns the width of vectors of terms: if terms are contiguous, and the
/// start of every output and every row is aligned.
int WidthOf(const ReduceConfig& config, const ReduceArgs& args) {
  const ReduceConfig::Dims& dims = config.reduced;
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
                 std::all_of(config.kept.in_strides,
                             config.kept.in_strides + config.kept.ndim, aligned)
             ? width
             : 1;
}

}  // namespace

ReduceConfig MakeReduceConfig(const ReduceArgs& args, int64_t most_partials) {
  ReduceConfig config;
  for (int d = 0; d < args.shape.ndim; ++d) {
    const int64_t size = args.shape.sizes[d];
    if (((args.reduced >> d) & 1u) != 0) {
      // Row-major within the reduced dims, like indices.
      Append(config.reduced, size, args.in.strides[d], 0);
      config.terms *= size;
    } else {
      Append(config.kept, size, args.in.strides[d], args.out.strides[d]);
      config.outputs *= size;
    }
  }
  if (config.terms == 0) config.reduced = {};
  config.terms_per_piece = std::max<int64_t>(config.terms, 1);
  if (config.outputs == 0) {
    config.geometry.blocks = 0;
    return config;
  }
  config.width = WidthOf(config, args);

  // Adjacent outputs, if they are closer in memory than their terms.
  const int64_t threads = std::clamp<int64_t>(
      CeilDiv(config.outputs * config.terms, 32) * 32, 32, kThreads);
  int block = 32;
  while (block < threads) block *= 2;
  if (config.terms <= 1 ||
      (config.outputs > 1 && config.width == 1 &&
       (config.reduced.ndim == 0 ||
        InnerStride(config.kept) < InnerStride(config.reduced)))) {
    config.lanes = 32;
  } else {
    // Few terms get few threads, and a block more outputs.
    int rows = 1;
    while (rows < block && rows * kFewTerms * config.width < config.terms) {
      rows *= 2;
    }
    config.lanes = block / rows;
    config.terms_first = true;
  }
  const int64_t rows = block / config.lanes;
  const int64_t groups = CeilDiv(config.outputs, config.lanes);

  const int64_t steps = CeilDiv(config.terms, rows * config.width);
  int64_t pieces = std::min(CeilDiv(steps, kLeastTerms),
                            CeilDiv(kEnoughThreads, groups * block));
  pieces = std::max(pieces, CeilDiv(steps, kMostTerms));
  pieces = std::clamp<int64_t>(
      pieces, 1, std::max<int64_t>(most_partials / config.outputs, 1));
  const int64_t steps_per_piece = std::max<int64_t>(CeilDiv(steps, pieces), 1);
  config.terms_per_piece = steps_per_piece * rows * config.width;
  config.pieces =
      std::max<int64_t>(CeilDiv(config.terms, config.terms_per_piece), 1);
  config.geometry.threads = block;
  config.geometry.blocks =
      std::min(groups * config.pieces, (int64_t{1} << 31) - 1);
  return config;
}

}  // namespace crosshatch::internal
