// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/reduce.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/kernels/kernel_table.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/launch.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/saving_node.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

using internal::KeptSizes;
using internal::NormalizeDims;

// In the order of the enum.
constexpr OpInfo kInfos[] = {{"sum"},    {"mean"},          {"prod"},
                             {"max"},    {"min"},           {"argmax"},
                             {"argmin"}, {"sum_of_squares"}};
static_assert(std::size(kInfos) ==
              size_t{1} + size_t(ReduceKind::kSumOfSquares));

bool IsArg(ReduceKind kind) {
  return kind == ReduceKind::kArgMax || kind == ReduceKind::kArgMin;
}

Tensor Reduce(ReduceKind kind, const Tensor& a, ShapeView dims, bool keepdim) {
  const char* const name = ReductionOp::InfoOf(kind).name;
  const Shape normal = NormalizeDims(dims, a, name);
  DType dtype = a.dtype();
  if (IsArg(kind) ||
      (kind == ReduceKind::kSum && !IsFloatingPoint(a.dtype()))) {
    dtype = kInt64;
  }
  return Apply1(ReductionOp(kind, normal, keepdim, dtype), {&a, 1});
}

/// The data of a call for its gradient formulas.
struct Call {
  ReduceKind kind;
  Shape sizes;  ///< Of the input.
  Shape kept;   ///< Of the output, reduced dims kept as 1.
  Shape dims;
  DType dtype;  ///< Of the input.

  /// Expands a tensor of the output's elements to the input's sizes.
  Tensor Spread(const Tensor& out) const {
    return Expand(Reshape(out, kept), sizes);
  }
};

/// Returns the product of a's other elements times g, correct also if elements
/// are zero.
Tensor ProductGradient(const Call& call, const Tensor& g, const Tensor& a) {
  const Tensor zero = Equal(a, ZerosLike(a));
  const Tensor nonzero = Where(zero, OnesLike(a), a);
  // In 16 bits the count may be inexact, except for zero and one.
  const Tensor zeros_in_group = call.Spread(
      ReducePartial(Sum(ToDType(zero, call.dtype), call.dims, true)));
  const Tensor product =
      call.Spread(ReducePartial(Prod(nonzero, call.dims, true)));
  const Tensor nothing = ZerosLike(a);
  const Tensor no_zero = Equal(zeros_in_group, nothing);
  const Tensor one_zero = Equal(zeros_in_group, OnesLike(a));
  return Mul(call.Spread(g),
             Where(zero, Where(one_zero, product, nothing),
                   Where(no_zero, Div(product, nonzero), nothing)));
}

Tensor ExtremeGradient(const Call& call, const Tensor& g, const Tensor& a,
                       const Tensor& out) {
  const Tensor equal = Equal(a, call.Spread(ReducePartial(out)));
  // 16-bit dtypes cannot represent large counts.
  const DType counts = StatisticsDType(call.dtype);
  const Tensor count =
      ReducePartial(Sum(ToDType(equal, counts), call.dims, /*keepdim=*/true));
  const Tensor share =
      ToDType(Div(ToDType(Reshape(g, call.kept), counts), count), call.dtype);
  return Mul(ToDType(equal, call.dtype), call.Spread(share));
}

}  // namespace

const OpInfo& ReductionOp::InfoOf(ReduceKind kind) {
  return kInfos[static_cast<size_t>(kind)];
}

TensorList ReductionOp::Forward(TensorSpan inputs) const {
  const Tensor& a = inputs[0];
  const char* const name = info().name;
  CH_CHECK(kind != ReduceKind::kMean || IsFloatingPoint(a.dtype()))
      << name << " of " << a.Describe() << ": not floating point";
  ReduceArgs args;
  args.kind = kind;
  args.shape = internal::ToKernelShape(a.sizes(), name);
  int64_t reduced_elements = 1;
  Shape sizes;
  size_t next = 0;
  for (int64_t d = 0; d < a.ndim(); ++d) {
    if (next < dims.size() && dims[next] == d) {
      args.reduced |= uint32_t{1} << d;
      reduced_elements *= a.size(d);
      if (keepdim) sizes.push_back(1);
      ++next;
    } else {
      sizes.push_back(a.size(d));
    }
  }
  Tensor out = Empty(sizes, out_dtype);
  CH_CHECK(!IsArg(kind) || reduced_elements > 0 || out.numel() == 0)
      << name << " of " << a.Describe() << " over no elements";
  args.in = internal::Input(a);
  args.out.data = out.raw_data();
  args.out.dtype = out_dtype;
  // The output's strides, by dims of the input.
  const Shape strides = ContiguousStrides(KeptSizes(a.sizes(), dims));
  for (size_t d = 0; d < strides.size(); ++d) args.out.strides[d] = strides[d];
  internal::Launch(&KernelTable::reduce, args);
  return {std::move(out)};
}

std::shared_ptr<Node> ReductionOp::Differentiate(TensorSpan inputs,
                                                 TensorSpan outputs) const {
  if (IsArg(kind)) return nullptr;
  const Tensor& a = inputs[0];
  const bool saves_input =
      kind != ReduceKind::kSum && kind != ReduceKind::kMean;
  const bool saves_output =
      kind == ReduceKind::kMax || kind == ReduceKind::kMin;
  auto node = MakeNode<2>(
      info(), [call = Call{kind, a.sizes(), KeptSizes(a.sizes(), dims), dims,
                           a.dtype()}](const auto& self, TensorSpan grads,
                                       GradientSlots& slots) {
        const Tensor g = ToDType(grads[0], call.dtype);
        switch (call.kind) {
          case ReduceKind::kSum:
            slots.Put(0, call.Spread(g));
            return;
          case ReduceKind::kMean: {
            const int64_t n = NumElements(call.sizes) /
                              std::max<int64_t>(NumElements(call.kept), 1);
            slots.Put(0, call.Spread(Mul(g, n > 0 ? 1.0 / double(n) : 0.0)));
            return;
          }
          case ReduceKind::kProduct:
            slots.Put(0, ProductGradient(call, g, self.Saved(0)));
            return;
          case ReduceKind::kMax:
          case ReduceKind::kMin:
            slots.Put(0,
                      ExtremeGradient(call, g, self.Saved(0), self.Saved(1)));
            return;
          case ReduceKind::kSumOfSquares:
            slots.Put(0, Mul(Mul(self.Saved(0), call.Spread(g)), 2));
            return;
          case ReduceKind::kArgMax:
          case ReduceKind::kArgMin:
            return;
        }
      });
  if (saves_input) node->Save(0, a);
  if (saves_output) node->SaveOutput(1, outputs[0]);
  return node;
}

Tensor Sum(const Tensor& a, ShapeView dims, bool keepdim) {
  return Reduce(ReduceKind::kSum, a, dims, keepdim);
}
Tensor Mean(const Tensor& a, ShapeView dims, bool keepdim) {
  return Reduce(ReduceKind::kMean, a, dims, keepdim);
}
Tensor Prod(const Tensor& a, ShapeView dims, bool keepdim) {
  return Reduce(ReduceKind::kProduct, a, dims, keepdim);
}
Tensor Max(const Tensor& a, ShapeView dims, bool keepdim) {
  return Reduce(ReduceKind::kMax, a, dims, keepdim);
}
Tensor Min(const Tensor& a, ShapeView dims, bool keepdim) {
  return Reduce(ReduceKind::kMin, a, dims, keepdim);
}
Tensor SumOfSquares(const Tensor& a, ShapeView dims, bool keepdim) {
  return Reduce(ReduceKind::kSumOfSquares, a, dims, keepdim);
}
Tensor ArgMax(const Tensor& a, int64_t dim, bool keepdim) {
  return Reduce(ReduceKind::kArgMax, a, {&dim, 1}, keepdim);
}
Tensor ArgMin(const Tensor& a, int64_t dim, bool keepdim) {
  return Reduce(ReduceKind::kArgMin, a, {&dim, 1}, keepdim);
}

Tensor SumTo(const Tensor& a, ShapeView sizes) {
  if (ShapeView(a.sizes()) == sizes) return a;
  CH_CHECK_GE(a.sizes().size(), sizes.size())
      << "sum of " << a.Describe() << " to " << ToString(sizes);
  const size_t lead = a.sizes().size() - sizes.size();
  Shape dims;
  bool within = false;
  for (size_t d = 0; d < a.sizes().size(); ++d) {
    if (d < lead) {
      dims.push_back(static_cast<int64_t>(d));
    } else if (sizes[d - lead] != a.sizes()[d]) {
      CH_CHECK_EQ(sizes[d - lead], 1)
          << "sum of " << a.Describe() << " to " << ToString(sizes);
      dims.push_back(static_cast<int64_t>(d));
      within = true;
    }
  }
  if (!within) return Sum(a, dims);
  return Reshape(Sum(a, dims, /*keepdim=*/true), sizes);
}

TensorList ReducePartialOp::Forward(TensorSpan inputs) const {
  return {inputs[0]};
}

std::optional<Shape> ReducePartialOp::AliasStrides(const Tensor& /*input*/,
                                                   ShapeView strides) const {
  return Shape(strides.begin(), strides.end());
}

std::shared_ptr<Node> ReducePartialOp::Differentiate(
    TensorSpan /*inputs*/, TensorSpan /*outputs*/) const {
  return MakeNode(kInfo, [](const Tensor& g) { return ReducePartial(g); });
}

Tensor ReducePartial(const Tensor& a) {
  return a.is_distributed() ? Apply1(ReducePartialOp(), {&a, 1}) : a;
}

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

namespace internal {

Shape NormalizeDims(ShapeView dims, const Tensor& a, const char* op) {
  Shape result;
  if (dims.empty()) {
    for (int d = 0; d < a.ndim(); ++d) result.push_back(d);
    return result;
  }
  for (int64_t dim : dims) result.push_back(NormalizeDim(dim, a.ndim(), op));
  std::sort(result.begin(), result.end());
  CH_CHECK(std::adjacent_find(result.begin(), result.end()) == result.end())
      << op << " of " << a.Describe() << " over " << ToString(dims)
      << ": a dim twice";
  return result;
}

Shape KeptSizes(ShapeView sizes, ShapeView dims) {
  Shape kept(sizes.begin(), sizes.end());
  for (int64_t dim : dims) kept[static_cast<size_t>(dim)] = 1;
  return kept;
}

Shape DroppedSizes(ShapeView sizes, ShapeView dims) {
  Shape dropped;
  size_t next = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (next < dims.size() && dims[next] == static_cast<int64_t>(d)) {
      ++next;
    } else {
      dropped.push_back(sizes[d]);
    }
  }
  return dropped;
}

int64_t NumReduced(ShapeView sizes, ShapeView dims) {
  int64_t count = 1;
  for (int64_t dim : dims) count *= sizes[static_cast<size_t>(dim)];
  return count;
}

}  // namespace internal

}  // namespace crosshatch
