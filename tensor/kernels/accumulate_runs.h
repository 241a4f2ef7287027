// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_ACCUMULATE_RUNS_H_
#define CROSSHATCH_TENSOR_KERNELS_ACCUMULATE_RUNS_H_

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/kernels/training_kernels.h"

namespace crosshatch::internal {

/// Calls f(args of one run) for each run, for kernels that take one run.
template <typename F>
void ForEachRun(const AccumulateRanksArgs& args, F f) {
  if (args.runs == 1) return f(args);
  AccumulateRanksArgs one = args;
  one.runs = 1;
  absl::InlinedVector<const void*, 8> sources(
      static_cast<size_t>(args.num_sources));
  one.sources = sources.data();
  for (int64_t run = 0; run < args.runs; ++run) {
    for (size_t s = 0; s < sources.size(); ++s) {
      sources[s] = static_cast<const std::byte*>(args.sources[s]) +
                   run * args.source_strides[s] * SizeOf(args.dtype);
    }
    one.out = static_cast<std::byte*>(args.out) +
              run * args.out_stride * SizeOf(args.out_dtype);
    f(one);
  }
}

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_ACCUMULATE_RUNS_H_
