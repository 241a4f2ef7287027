// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/reference/reduce.h"

#include <cmath>
#include <limits>

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

}  // namespace crosshatch::reference
