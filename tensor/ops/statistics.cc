// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/kernels/kernel_table.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/launch.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/ops/reduce_dims.h"
#include "crosshatch/tensor/ops/reduce_partial.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Returns `a`, reduced and in the dtype in which statistics are computed.
Tensor Wide(const Tensor& a) {
  return ToDType(ReducePartial(a), StatisticsDType(a.dtype()));
}

Tensor Constant(double value, const Tensor& like) {
  return Full({}, value, like.dtype());
}

/// Returns x^(1/degree). Where it is 0, the gradient is 0.
Tensor Root(const Tensor& x, double degree) {
  const auto root = [degree](const Tensor& t) {
    return degree == 2 ? Sqrt(t) : Pow(t, 1 / degree);
  };
  if (!x.requires_grad()) return root(x);
  const Tensor zero = Equal(x, Constant(degree > 0 ? 0 : kInfinity, x));
  return Where(zero, Constant(0, x), root(Where(zero, Constant(1, x), x)));
}

/// Returns |x|^p. Where x is 0, the gradient is 0.
Tensor Power(const Tensor& x, double p) {
  if (p >= 2 || !x.requires_grad()) return Pow(Abs(x), p);
  const Tensor zero = Equal(x, Constant(0, x));
  return Where(zero, Constant(p > 0 ? 0 : kInfinity, x),
               Pow(Where(zero, Constant(1, x), Abs(x)), p));
}

/// Returns 1 for each nonzero element, in the graph, with gradients of 0.
Tensor Indicator(const Tensor& x) {
  return Where(NotEqual(x, Constant(0, x)), Constant(1, x), Mul(x, 0.0));
}

}  // namespace

Tensor Norm(const Tensor& a, double p, ShapeView dims, bool keepdim) {
  internal::CheckFloating("norm", a);
  CH_CHECK(!std::isnan(p)) << "norm of " << a.Describe() << " for p = NaN";
  if (p < 0 || p == kInfinity) {
    const Shape normal = internal::NormalizeDims(dims, a, "norm");
    CH_CHECK(internal::NumReduced(a.sizes(), normal) > 0 ||
             NumElements(internal::DroppedSizes(a.sizes(), normal)) == 0)
        << "norm of " << a.Describe() << " for p = " << p
        << " over no elements";
  }
  if (p == 1) return Sum(Abs(a), dims, keepdim);
  if (std::isinf(p)) {
    const Tensor magnitude = Abs(a);
    return p > 0 ? Max(magnitude, dims, keepdim)
                 : Min(magnitude, dims, keepdim);
  }
  const Tensor x = Wide(a);
  if (p == 0) return ToDType(Sum(Indicator(x), dims, keepdim), a.dtype());
  const Tensor sum =
      p == 2 ? SumOfSquares(x, dims, keepdim) : Sum(Power(x, p), dims, keepdim);
  return ToDType(Root(ReducePartial(sum), p), a.dtype());
}

Tensor Var(const Tensor& a, ShapeView dims, bool keepdim, double correction) {
  internal::CheckFloating("var", a);
  const Shape normal = internal::NormalizeDims(dims, a, "var");
  const Tensor x = Wide(a);
  const Tensor mean = ReducePartial(Mean(x, normal, /*keepdim=*/true));
  const auto count =
      static_cast<double>(internal::NumReduced(a.sizes(), normal));
  // If the divisor is 0, the result is 0 / 0 or infinity, as defined.
  const double scale = 1 / std::max(count - correction, 0.0);
  return ToDType(Mul(SumOfSquares(Sub(x, mean), normal, keepdim), scale),
                 a.dtype());
}

Tensor Std(const Tensor& a, ShapeView dims, bool keepdim, double correction) {
  internal::CheckFloating("std", a);
  const Tensor var = ReducePartial(Var(Wide(a), dims, keepdim, correction));
  return ToDType(Root(var, 2), a.dtype());
}

Tensor LogSumExp(const Tensor& a, ShapeView dims, bool keepdim) {
  internal::CheckFloating("logsumexp", a);
  const Shape normal = internal::NormalizeDims(dims, a, "logsumexp");
  const Tensor x = Wide(a);
  Tensor shift;
  {
    // The result does not depend on it, so no gradient flows. Finite, because
    // inf - inf is NaN.
    NoGrad no_grad;
    const double finite = x.dtype() == kFloat64
                              ? std::numeric_limits<double>::max()
                              : double{std::numeric_limits<float>::max()};
    shift = ReducePartial(Max(x, normal, /*keepdim=*/true));
    shift = Maximum(Minimum(shift, finite), -finite);
  }
  const Tensor sum =
      ReducePartial(Sum(Exp(Sub(x, shift)), normal, /*keepdim=*/true));
  Tensor result = Add(Log(sum), shift);
  if (!keepdim) {
    result = Reshape(result, internal::DroppedSizes(a.sizes(), normal));
  }
  return ToDType(result, a.dtype());
}

Tensor Any(const Tensor& a, ShapeView dims, bool keepdim) {
  return ToDType(
      ReducePartial(Sum(ToDType(ReducePartial(a), kBool), dims, keepdim)),
      kBool);
}

Tensor All(const Tensor& a, ShapeView dims, bool keepdim) {
  return LogicalNot(
      Any(LogicalNot(ToDType(ReducePartial(a), kBool)), dims, keepdim));
}

}  // namespace crosshatch
