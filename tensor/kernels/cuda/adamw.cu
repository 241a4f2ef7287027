// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>

#include "crosshatch/tensor/kernels/cuda/elementwise.cuh"
#include "crosshatch/tensor/kernels/cuda/entry_points.h"

namespace crosshatch::internal {
namespace {

/// The arguments, converted once on the host.
struct AdamWStep {
  int64_t count;
  float* param;
  const float* grad;
  float* exp_avg;
  float* exp_avg_sq;
  const float* grad_scale;
  float decay;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float step;
  float root_correction;
  float eps;
};

template <int N>
__global__ void __launch_bounds__(256) AdamWKernel(AdamWStep args) {
  const float scale =
      args.grad_scale == nullptr ? 1.0f : LoadGlobal<float>(args.grad_scale);
  const int64_t items = (args.count + N - 1) / N;
  for (int64_t item = GlobalThread(); item < items; item += GlobalThreads()) {
    const int64_t first = item * N;
    const int64_t count = args.count - first < N ? args.count - first : N;
    float p[N];
    float grad[N];
    float m[N];
    float v[N];
    LoadVector(args.param, DType::kFloat32, first, 1, count, p);
    LoadVector(args.grad, DType::kFloat32, first, 1, count, grad);
    LoadVector(args.exp_avg, DType::kFloat32, first, 1, count, m);
    LoadVector(args.exp_avg_sq, DType::kFloat32, first, 1, count, v);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float g = grad[i] * scale;
      m[i] += args.one_minus_beta1 * (g - m[i]);
      v[i] = args.beta2 * v[i] + args.one_minus_beta2 * g * g;
      p[i] = p[i] * args.decay -
             args.step * m[i] /
                 (std::sqrt(v[i]) / args.root_correction + args.eps);
    }
    StoreVector<false>(args.param, DType::kFloat32, first, count, p);
    StoreVector<false>(args.exp_avg, DType::kFloat32, first, count, m);
    StoreVector<false>(args.exp_avg_sq, DType::kFloat32, first, count, v);
  }
}

}  // namespace

void CudaAdamW(const AdamWArgs& args, KernelContext& context) {
  const AdamWStep step = {args.count,
                          args.param,
                          args.grad,
                          args.exp_avg,
                          args.exp_avg_sq,
                          args.grad_scale,
                          static_cast<float>(1 - args.lr * args.weight_decay),
                          static_cast<float>(1 - args.beta1),
                          static_cast<float>(args.beta2),
                          static_cast<float>(1 - args.beta2),
                          static_cast<float>(args.lr / args.bias_correction1),
                          static_cast<float>(std::sqrt(args.bias_correction2)),
                          static_cast<float>(args.eps)};
  const auto is_aligned = [](const float* data) {
    return IsVectorAligned(data, DType::kFloat32, 0, 4);
  };
  if (is_aligned(args.param) && is_aligned(args.grad) &&
      is_aligned(args.exp_avg) && is_aligned(args.exp_avg_sq)) {
    LaunchKernel("adamw", &AdamWKernel<4>,
                 GeometryOfItems((args.count + 3) / 4), context, step);
  } else {
    LaunchKernel("adamw", &AdamWKernel<1>, GeometryOfItems(args.count), context,
                 step);
  }
}

}  // namespace crosshatch::internal
