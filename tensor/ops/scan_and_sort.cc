// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/scan_and_sort.h"

#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/index.h"
#include "crosshatch/tensor/ops/launch.h"
#include "crosshatch/tensor/ops/saving_node.h"
#include "crosshatch/tensor/ops/view.h"

namespace crosshatch {

TensorList CumSumOp::Forward(TensorSpan inputs) const {
  const Tensor& a = inputs[0];
  Tensor out =
      Empty(a.sizes(), IsFloatingPoint(a.dtype()) ? a.dtype() : kInt64);
  CumSumArgs args;
  args.shape = internal::ToKernelShape(a.sizes(), kInfo.name);
  args.dim = dim;
  args.in = internal::Input(a);
  args.out = internal::Output(out);
  args.reverse = reverse;
  internal::Launch(&KernelTable::cumsum, args);
  return {std::move(out)};
}

std::shared_ptr<Node> CumSumOp::Differentiate(TensorSpan /*inputs*/,
                                              TensorSpan /*outputs*/) const {
  return MakeNode(kInfo, [dim = dim, reverse = reverse](const Tensor& g) {
    return Apply1(CumSumOp(dim, !reverse), {g});
  });
}

Tensor CumSum(const Tensor& a, int64_t dim) {
  const int ndim = a.ndim() == 0 ? 1 : a.ndim();
  const int normal = NormalizeDim(dim, ndim, CumSumOp::kInfo.name);
  if (a.ndim() == 0) return Reshape(CumSum(Reshape(a, {1}), 0), {});
  return Apply1(CumSumOp(normal), {&a, 1});
}

namespace {

Shape SortedSizes(ShapeView sizes, int dim, int64_t size) {
  Shape result(sizes.begin(), sizes.end());
  result[static_cast<size_t>(dim)] = size;
  return result;
}

Sorted SortAlong(const Tensor& a, int dim, int64_t count, bool descending,
                 bool sorted) {
  TensorList both = Apply(SortOp(dim, count, descending, sorted), {&a, 1});
  return {std::move(both[0]), std::move(both[1])};
}

/// Sorts a tensor without dims.
Sorted SortOne(const Tensor& a, bool descending) {
  const Sorted one = SortAlong(Reshape(a, {1}), 0, 1, descending, true);
  return {Reshape(one.values, {}), Reshape(one.indices, {})};
}

}  // namespace

TensorList SortOp::Forward(TensorSpan inputs) const {
  const Tensor& a = inputs[0];
  CH_CHECK(count >= 0 && count <= a.size(dim))
      << kInfo.name << " of " << a.Describe() << ": the first " << count
      << " elements of dim " << dim;
  const Shape sizes = SortedSizes(a.sizes(), dim, count);
  Tensor values = Empty(sizes, a.dtype());
  Tensor indices = Empty(sizes, kInt64);
  SortArgs args;
  args.shape = internal::ToKernelShape(a.sizes(), kInfo.name);
  args.dim = dim;
  args.in = internal::Input(a);
  args.count = count;
  args.descending = descending;
  args.sorted = sorted;
  if (inputs.size() > 1) {
    CH_CHECK(inputs[1].dtype() == kInt64 && inputs[1].sizes() == a.sizes())
        << kInfo.name << " of " << a.Describe() << " with the indices "
        << inputs[1].Describe();
    args.labels = internal::Input(inputs[1]);
  }
  args.values = internal::Output(values);
  args.indices = internal::Output(indices);
  internal::LaunchWithWorkspace(&KernelTable::sort_workspace_bytes,
                                &KernelTable::sort, args);
  return {std::move(values), std::move(indices)};
}

std::shared_ptr<Node> SortOp::Differentiate(TensorSpan inputs,
                                            TensorSpan outputs) const {
  if (!IsFloatingPoint(inputs[0].dtype())) return nullptr;
  auto node = MakeNode<1>(
      kInfo, [dim = dim, size = inputs[0].size(dim)](
                 const auto& self, TensorSpan grads, GradientSlots& slots) {
        slots.Put(0, Apply1(GatherGradOp({.dim = dim, .bound = size}, size),
                            {self.Saved(0), grads[0]}));
      });
  node->SaveOutput(0, outputs[1], 1);
  return node;
}

Sorted Sort(const Tensor& a, int64_t dim, bool descending) {
  if (a.ndim() == 0) {
    NormalizeDim(dim, 1, SortOp::kInfo.name);
    return SortOne(a, descending);
  }
  const int normal = NormalizeDim(dim, a.ndim(), SortOp::kInfo.name);
  return SortAlong(a, normal, a.size(normal), descending, /*sorted=*/true);
}

Sorted TopK(const Tensor& a, int64_t k, int64_t dim, bool largest,
            bool sorted) {
  const int normal = NormalizeDim(dim, a.ndim() == 0 ? 1 : a.ndim(), "topk");
  const int64_t size = a.ndim() == 0 ? 1 : a.size(normal);
  CH_CHECK(k >= 0 && k <= size)
      << "topk of " << a.Describe() << ": " << k << " elements of dim " << dim;
  if (a.ndim() == 0) {
    CH_CHECK_EQ(k, 1) << "topk of " << a.Describe()
                      << ": no elements of a tensor of no dims";
    return SortOne(a, largest);
  }
  return SortAlong(a, normal, k, largest, sorted);
}

}  // namespace crosshatch
