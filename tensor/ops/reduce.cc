// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/reduce.h"

#include <algorithm>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/launch.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce_dims.h"
#include "crosshatch/tensor/ops/reduce_partial.h"
#include "crosshatch/tensor/ops/saving_node.h"
#include "crosshatch/tensor/ops/view.h"

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

void ReductionOp::AppendKey(OpKey& key) const {
  key.push_back(keepdim);
  key.push_back(static_cast<int64_t>(out_dtype));
  key.insert(key.end(), dims.begin(), dims.end());
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

}  // namespace crosshatch
