// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

#include "crosshatch/tensor/kernels/reference/reference.h"

namespace crosshatch::reference {
namespace {

Real ReduceOne(ReduceKind kind, const Reals& terms) {
  constexpr Real kInf = std::numeric_limits<Real>::infinity();
  Real result = 0;
  int64_t index = -1;
  switch (kind) {
    case ReduceKind::kSum:
    case ReduceKind::kMean:
      for (Real x : terms) result += x;
      return kind == ReduceKind::kSum
                 ? result
                 : result / static_cast<Real>(terms.size());
    case ReduceKind::kSumOfSquares:
      for (Real x : terms) result += x * x;
      return result;
    case ReduceKind::kProduct:
      result = 1;
      for (Real x : terms) result *= x;
      return result;
    case ReduceKind::kMax:
      result = -kInf;
      for (Real x : terms) result = std::isnan(x) || x > result ? x : result;
      return result;
    case ReduceKind::kMin:
      result = kInf;
      for (Real x : terms) result = std::isnan(x) || x < result ? x : result;
      return result;
    case ReduceKind::kArgMax:
    case ReduceKind::kArgMin:
      for (size_t i = 0; i < terms.size(); ++i) {
        if (std::isnan(terms[i])) return static_cast<Real>(i);
        const bool beats =
            kind == ReduceKind::kArgMax ? terms[i] > result : terms[i] < result;
        if (index < 0 || beats) {
          index = static_cast<int64_t>(i);
          result = terms[i];
        }
      }
      return static_cast<Real>(index);
  }
  return result;
}

}  // namespace

Reduction Reduce(const ReduceArgs& args) {
  KernelShape kept, reduced;
  int64_t kept_strides[kMaxKernelDims], reduced_strides[kMaxKernelDims];
  for (int d = 0; d < args.shape.ndim; ++d) {
    const bool is_reduced = ((args.reduced >> d) & 1u) != 0;
    KernelShape& shape = is_reduced ? reduced : kept;
    int64_t* strides = is_reduced ? reduced_strides : kept_strides;
    strides[shape.ndim] = args.in.strides[d];
    shape.sizes[shape.ndim++] = args.shape.sizes[d];
  }
  const auto term_offsets = Offsets(reduced, reduced_strides);
  Reduction result;
  result.terms = static_cast<int64_t>(term_offsets.size());
  for (int64_t base : Offsets(kept, kept_strides)) {
    Reals terms;
    Real magnitude = 0;
    for (int64_t offset : term_offsets) {
      terms.push_back(ReadElement(args.in.data, args.in.dtype, base + offset));
      const Real x = std::abs(terms.back());
      magnitude += args.kind == ReduceKind::kSumOfSquares ? x * x : x;
    }
    result.values.push_back(ReduceOne(args.kind, terms));
    result.magnitudes.push_back(magnitude);
  }
  return result;
}

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

namespace {

// Returns the row-major indices of each lane's elements in a tensor of `shape`.
std::vector<std::vector<size_t>> Lanes(const KernelShape& shape, int dim) {
  int64_t inner = 1, total = 1;
  for (int d = 0; d < shape.ndim; ++d) {
    total *= shape.sizes[d];
    if (d > dim) inner *= shape.sizes[d];
  }
  const int64_t n = shape.sizes[dim];
  std::vector<std::vector<size_t>> lanes;
  for (int64_t start = 0; n > 0 && start < total; ++start) {
    if (start / inner % n != 0) continue;
    lanes.emplace_back();
    for (int64_t i = 0; i < n; ++i) {
      lanes.back().push_back(static_cast<size_t>(start + i * inner));
    }
  }
  return lanes;
}

bool Before(Real a, Real b) {
  if (std::isnan(a)) return false;
  return std::isnan(b) || a < b;
}

}  // namespace

Sums CumSum(const CumSumArgs& args) {
  const Reals in = ReadAll(args.shape, args.in);
  Sums result = {Reals(in.size()), Reals(in.size())};
  for (std::vector<size_t> lane : Lanes(args.shape, args.dim)) {
    if (args.reverse) std::reverse(lane.begin(), lane.end());
    Real sum = 0;
    Real magnitude = 0;
    for (size_t at : lane) {
      result.values[at] = sum += in[at];
      result.magnitudes[at] = magnitude += std::abs(in[at]);
    }
  }
  return result;
}

Sorted Sort(const SortArgs& args) {
  const Reals in = ReadAll(args.shape, args.in);
  KernelShape taken = args.shape;
  taken.sizes[args.dim] = args.count;
  const auto from = Lanes(args.shape, args.dim);
  const auto to = Lanes(taken, args.dim);
  Sorted result;
  for (size_t lane = 0; lane < to.size(); ++lane) {
    std::vector<int64_t> order(from[lane].size());
    std::iota(order.begin(), order.end(), 0);
    const auto value = [&](int64_t i) {
      return in[from[lane][static_cast<size_t>(i)]];
    };
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return args.descending ? Before(value(b), value(a))
                             : Before(value(a), value(b));
    });
    order.resize(static_cast<size_t>(args.count));
    if (!args.sorted) std::sort(order.begin(), order.end());
    result.values.resize(to.size() * order.size());
    result.indices.resize(to.size() * order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      result.values[to[lane][i]] = value(order[i]);
      result.indices[to[lane][i]] = order[i];
    }
  }
  return result;
}

std::vector<int64_t> ElementsOfWindows(const WindowsArgs& args) {
  const WindowDim& rows = args.rows;
  const WindowDim& cols = args.cols;
  std::vector<int64_t> elements;
  for (int64_t n = 0; n < args.images; ++n) {
    for (int64_t oh = 0; oh < rows.windows; ++oh) {
      for (int64_t ow = 0; ow < cols.windows; ++ow) {
        for (int64_t c = 0; c < args.channels; ++c) {
          for (int64_t kh = 0; kh < rows.kernel; ++kh) {
            for (int64_t kw = 0; kw < cols.kernel; ++kw) {
              const int64_t h = rows.At(oh, kh);
              const int64_t w = cols.At(ow, kw);
              const bool inside =
                  h >= 0 && h < rows.size && w >= 0 && w < cols.size;
              elements.push_back(inside ? ((n * args.channels + c) * rows.size +
                                           h) * cols.size +
                                              w
                                        : -1);
            }
          }
        }
      }
    }
  }
  return elements;
}

}  // namespace crosshatch::reference
