// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cuda/elementwise.cuh"
#include "crosshatch/tensor/kernels/cuda/entry_points.h"
#include "crosshatch/tensor/kernels/cuda/global_index.cuh"

namespace crosshatch::internal {
namespace {

/// The parameters of all elements.
struct Numbers {
  RandomKind kind;
  uint64_t key;
  uint64_t stream;
  float offset;
  float factor;
};

template <int N>
__global__ void __launch_bounds__(256)
    RandomKernel(Numbers numbers, Box box, void* out, DType dtype) {
  const int64_t items = (box.count + N - 1) / N;
  for (int64_t item = GlobalThread(); item < items; item += GlobalThreads()) {
    const int64_t first = item * N;
    const int64_t count = box.count - first < N ? box.count - first : N;
    double values[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i >= count) break;
      const auto words =
          WordsOf(numbers.key, numbers.stream, box.GlobalIndex(first + i));
      const float value = numbers.kind == RandomKind::kUniform
                              ? UniformOf(words[0])
                              : NormalOf(words[0], words[1]);
      values[i] = std::fma(numbers.factor, value, numbers.offset);
    }
    StoreVector<true>(out, dtype, first, count, values);
  }
}

}  // namespace

void CudaRandom(const RandomArgs& args, KernelContext& context) {
  CH_CHECK(IsFloatingPoint(args.dtype))
      << "random kernel of " << Name(args.dtype);
  const Box box = MakeBox(args.box, args.offsets, args.global_sizes);
  const bool uniform = args.kind == RandomKind::kUniform;
  const Numbers numbers = {
      args.kind, args.key, args.stream, static_cast<float>(args.a),
      static_cast<float>(uniform ? args.b - args.a : args.b)};
  if (IsVectorAligned(args.out, args.dtype, 0, 4)) {
    LaunchKernel("random", &RandomKernel<4>,
                 GeometryOfItems((box.count + 3) / 4), context, numbers, box,
                 args.out, args.dtype);
  } else {
    LaunchKernel("random", &RandomKernel<1>, GeometryOfItems(box.count),
                 context, numbers, box, args.out, args.dtype);
  }
}

}  // namespace crosshatch::internal
