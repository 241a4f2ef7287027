// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_REDUCE_CONFIG_H_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_REDUCE_CONFIG_H_

/// \file
/// The split of a reduction among threads: a value, and a pure function of the
/// args.

#include <cstdint>

#include "crosshatch/tensor/device_function.h"
#include "crosshatch/tensor/kernels/cuda/launch_geometry.h"
#include "crosshatch/tensor/kernels/reduce_kernels.h"

namespace crosshatch::internal {

/// The threads of a block: `lanes` adjacent outputs; the threads of each share
/// the terms of a piece.
struct ReduceConfig {
  /// The dims of outputs and those of their terms, outermost first.
  struct Dims {
    int ndim = 0;
    int64_t sizes[kMaxKernelDims] = {};
    int64_t in_strides[kMaxKernelDims] = {};
    int64_t out_strides[kMaxKernelDims] = {};  ///< Of outputs.
  };
  Dims kept;
  Dims reduced;
  int64_t outputs = 1;
  int64_t terms = 1;
  int lanes = 1;
  /// Whether adjacent threads share an output; otherwise they share a term's
  /// index.
  bool terms_first = false;
  /// Terms that a thread loads at once.
  int width = 1;
  int64_t pieces = 1;
  int64_t terms_per_piece = 1;
  LaunchGeometry geometry;

  CH_HOST_DEVICE static int64_t Offset(const Dims& dims, int64_t index,
                                       const int64_t* strides) {
    int64_t offset = 0;
    for (int d = dims.ndim - 1; d > 0; --d) {
      const int64_t next = index / dims.sizes[d];
      offset += (index - next * dims.sizes[d]) * strides[d];
      index = next;
    }
    return dims.ndim > 0 ? offset + index * strides[0] : offset;
  }
  CH_HOST_DEVICE int64_t InOffset(int64_t output) const {
    return Offset(kept, output, kept.in_strides);
  }
  CH_HOST_DEVICE int64_t OutOffset(int64_t output) const {
    return Offset(kept, output, kept.out_strides);
  }
  CH_HOST_DEVICE int64_t TermOffset(int64_t term) const {
    return Offset(reduced, term, reduced.in_strides);
  }
};

/// \param most_partials the partial results that fit into memory: an upper
///     bound of pieces * outputs if there is more than one piece.
ReduceConfig MakeReduceConfig(const ReduceArgs& args, int64_t most_partials);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_REDUCE_CONFIG_H_
