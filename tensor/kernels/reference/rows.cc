// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/reference/rows.h"

#include <algorithm>
#include <cmath>

namespace crosshatch::reference {

Real LogSumExp(const Reals& x) {
  const Real max = *std::max_element(x.begin(), x.end());
  Real sum = 0;
  for (Real v : x) sum += std::exp(v - max);
  return max + std::log(sum);
}

Reals Softmax(const Reals& x, bool log) {
  if (x.empty()) return {};
  const Real shift = LogSumExp(x);
  Reals y;
  for (Real v : x) y.push_back(log ? v - shift : std::exp(v - shift));
  return y;
}

Reals SoftmaxBackward(const Reals& y, const Reals& grad, bool log) {
  Real sum = 0;
  for (size_t i = 0; i < y.size(); ++i) sum += grad[i] * (log ? 1 : y[i]);
  Reals dx;
  for (size_t i = 0; i < y.size(); ++i) {
    dx.push_back(log ? grad[i] - std::exp(y[i]) * sum : (grad[i] - sum) * y[i]);
  }
  return dx;
}

NormStatistics NormOf(const Reals& x, bool centered, Real eps) {
  const auto n = static_cast<Real>(x.size());
  Real mean = 0;
  if (centered) {
    for (Real v : x) mean += v / n;
  }
  Real variance = 0;
  for (Real v : x) variance += (v - mean) * (v - mean) / n;
  return {mean, 1 / std::sqrt(variance + eps)};
}

Reals NormBackward(const Reals& x, const Reals& weight, const Reals& grad,
                   bool centered, Real eps) {
  const NormStatistics norm = NormOf(x, centered, eps);
  const auto n = static_cast<Real>(x.size());
  Real shift = 0;
  Real slope = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const Real g = grad[i] * weight[i];
    if (centered) shift += g / n;
    slope += g * (x[i] - norm.mean) * norm.rstd / n;
  }
  Reals dx;
  for (size_t i = 0; i < x.size(); ++i) {
    const Real xhat = (x[i] - norm.mean) * norm.rstd;
    dx.push_back(norm.rstd * (grad[i] * weight[i] - shift - xhat * slope));
  }
  return dx;
}

}  // namespace crosshatch::reference
