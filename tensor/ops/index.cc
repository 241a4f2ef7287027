// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/index.h"

#include <bit>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/launch.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/saving_node.h"
#include "crosshatch/tensor/ops/view.h"

namespace crosshatch {
namespace {

using internal::Launch;

/// Checks that sizes are equal except for the dim.
void CheckLines(const char* op, const IndexedBy& by, const Tensor& a,
                const Tensor& index) {
  internal::CheckIndices(op, index);
  bool fits = a.ndim() == index.ndim() && by.dim < a.ndim();
  for (int d = 0; fits && d < a.ndim(); ++d) {
    fits = d == by.dim || a.size(d) == index.size(d);
  }
  CH_CHECK(fits) << op << " along dim " << by.dim << " of " << a.Describe()
                 << " with indices " << index.Describe()
                 << ": sizes must be equal but for that dim";
}

void CheckSource(const char* op, const Tensor& index, const Tensor& src) {
  CH_CHECK(index.sizes() == src.sizes())
      << op << " of " << src.Describe() << " with indices " << index.Describe()
      << ": sizes must be equal";
}

void CheckSummable(const char* op, const Tensor& src) {
  CH_CHECK(IsFloatingPoint(src.dtype()) || src.dtype() == kInt32 ||
           src.dtype() == kInt64)
      << op << " of " << src.Describe()
      << ": sums are of floating point, i32 or i64";
}

IndexedDim KernelDim(const char* op, const IndexedBy& by, const Tensor& held) {
  return {op, by.dim, by.first, held.size(by.dim), by.bound};
}

Tensor GatherFrom(const char* op, const IndexedBy& by, const Tensor& a,
                  const Tensor& index) {
  CheckLines(op, by, a, index);
  Tensor out = Empty(index.sizes(), a.dtype());
  GatherArgs args;
  args.shape = internal::ToKernelShape(index.sizes(), op);
  args.at = KernelDim(op, by, a);
  args.index = internal::Input(index);
  args.src = internal::Input(a);
  args.out = internal::Output(out);
  Launch(&KernelTable::gather, args);
  return out;
}

/// Writes or adds src, which broadcasts to index's sizes, to `out`.
void ScatterTo(const char* op, const IndexedBy& by, const Tensor& out,
               const Tensor& index, const Tensor& src, WriteMode mode) {
  CheckLines(op, by, out, index);
  ScatterArgs args;
  args.shape = internal::ToKernelShape(index.sizes(), op);
  args.at = KernelDim(op, by, out);
  args.index = internal::Input(index);
  args.src = internal::BroadcastInput(src, index.sizes());
  args.out = internal::Output(out);
  args.mode = mode;
  Launch(&KernelTable::scatter, args);
}

/// Returns `sums`, in the dtype of summation, converted to src's dtype.
Tensor Rounded(Tensor sums, DType dtype) {
  if (sums.dtype() == dtype) return sums;
  Tensor rounded = Empty(sums.sizes(), dtype);
  internal::LaunchCopy(rounded, sums);
  return rounded;
}

DType SumDType(DType dtype) { return SizeOf(dtype) == 2 ? kFloat32 : dtype; }

IndexedBy IndexedDimOf(const Tensor& a, int64_t dim, const char* op) {
  const int d = NormalizeDim(dim, a.ndim(), op);
  return {.dim = d, .bound = a.size(d)};
}

}  // namespace

TensorList GatherOp::Forward(TensorSpan inputs) const {
  return {GatherFrom(selects ? "index_select" : kInfo.name, by, inputs[0],
                     inputs[1])};
}

std::shared_ptr<Node> GatherOp::Differentiate(TensorSpan inputs,
                                              TensorSpan /*outputs*/) const {
  auto node = MakeNode<1>(kInfo, [by = by, count = inputs[0].size(by.dim)](
                                     const auto& self, TensorSpan grads,
                                     GradientSlots& slots) {
    slots.Put(0, Apply1(GatherGradOp(by, count), {self.Saved(0), grads[0]}));
  });
  node->Save(0, inputs[1]);
  return node;
}

TensorList GatherGradOp::Forward(TensorSpan inputs) const {
  const Tensor& index = inputs[0];
  const Tensor& src = inputs[1];
  CheckSource(kInfo.name, index, src);
  CheckSummable(kInfo.name, src);
  Shape sizes = index.sizes();
  sizes[static_cast<size_t>(by.dim)] = count;
  const Tensor sums = Zeros(sizes, SumDType(src.dtype()));
  ScatterTo(kInfo.name, by, sums, index, src, WriteMode::kAccumulate);
  return {Rounded(sums, src.dtype())};
}

std::shared_ptr<Node> GatherGradOp::Differentiate(
    TensorSpan inputs, TensorSpan /*outputs*/) const {
  auto node = MakeNode<1>(kInfo, [by = by](const auto& self, TensorSpan grads,
                                           GradientSlots& slots) {
    slots.Put(1, Apply1(GatherOp(by), {grads[0], self.Saved(0)}));
  });
  node->Save(0, inputs[0]);
  return node;
}

TensorList ScatterAddOp::Forward(TensorSpan inputs) const {
  const Tensor& base = inputs[0];
  CheckSource(kInfo.name, inputs[1], inputs[2]);
  CheckSummable(kInfo.name, inputs[2]);
  internal::CheckSameDType(kInfo.name, base, inputs[2]);
  const Tensor sums = Empty(base.sizes(), SumDType(base.dtype()));
  internal::LaunchCopy(sums, base);
  ScatterTo(kInfo.name, by, sums, inputs[1], inputs[2], WriteMode::kAccumulate);
  return {Rounded(sums, base.dtype())};
}

std::shared_ptr<Node> ScatterAddOp::Differentiate(
    TensorSpan inputs, TensorSpan /*outputs*/) const {
  auto node = MakeNode<1>(kInfo, [by = by](const auto& self, TensorSpan grads,
                                           GradientSlots& slots) {
    if (slots.Needed(0)) slots.Put(0, grads[0]);
    if (slots.Needed(2)) {
      slots.Put(2, Apply1(GatherOp(by), {grads[0], self.Saved(0)}));
    }
  });
  node->Save(0, inputs[1]);
  return node;
}

TensorList ScatterOp::Forward(TensorSpan inputs) const {
  const Tensor& base = inputs[0];
  Tensor src = inputs[2];
  if (src.defined()) {
    CheckSource(kInfo.name, inputs[1], src);
    internal::CheckSameDType(kInfo.name, base, src);
  } else {
    src = Full({}, value, base.dtype());
  }
  const Tensor out = Empty(base.sizes(), base.dtype());
  internal::LaunchCopy(out, base);
  ScatterTo(kInfo.name, by, out, inputs[1], src, WriteMode::kOverwrite);
  return {out};
}

std::shared_ptr<Node> ScatterOp::Differentiate(TensorSpan inputs,
                                               TensorSpan /*outputs*/) const {
  if (!IsFloatingPoint(inputs[0].dtype())) return nullptr;
  auto node = MakeNode<1>(kInfo, [by = by](const auto& self, TensorSpan grads,
                                           GradientSlots& slots) {
    const Tensor index = self.Saved(0);
    if (slots.Needed(0)) {
      slots.Put(0, Apply1(ScatterOp(by), {grads[0], index, Tensor()}));
    }
    if (slots.Needed(2)) {
      slots.Put(2, Apply1(ScatterGradOp(by), {index, grads[0]}));
    }
  });
  node->Save(0, inputs[1]);
  return node;
}

TensorList ScatterGradOp::Forward(TensorSpan inputs) const {
  const Tensor& index = inputs[0];
  const Tensor& grad = inputs[1];
  internal::CheckFloating(kInfo.name, grad);
  // Scatters positions in place of values: a position that comes back unchanged
  // was written last. They count from 1, so that 0 marks elements that are not
  // local.
  const int64_t length = index.size(by.dim);
  Shape along(static_cast<size_t>(index.ndim()), 1);
  along[static_cast<size_t>(by.dim)] = length;
  const Tensor counted = Arange(length + 1, kInt64);
  const Tensor places =
      MakeView(counted.storage(), 1, along, ContiguousStrides(along), kInt64);
  const Tensor last = Empty(grad.sizes(), kInt64);
  ScatterTo(kInfo.name, by, last, index, places, WriteMode::kOverwrite);
  const Tensor written =
      BinaryPointwiseOp(BinaryOp::kEqual)
          .Forward({GatherFrom(kInfo.name, by, last, index), places})[0];
  return {WhereOp().Forward({written, GatherFrom(kInfo.name, by, grad, index),
                             Full({}, 0, grad.dtype())})[0]};
}

std::shared_ptr<Node> ScatterGradOp::Differentiate(
    TensorSpan inputs, TensorSpan /*outputs*/) const {
  auto node = MakeNode<2>(kInfo, [by = by](const auto& self, TensorSpan grads,
                                           GradientSlots& slots) {
    slots.Put(1, Apply1(ScatterOp(by),
                        {ZerosLike(self.Saved(1)), self.Saved(0), grads[0]}));
  });
  node->Save(0, inputs[0]);
  node->Save(1, inputs[1]);
  return node;
}

Tensor Gather(const Tensor& a, int64_t dim, const Tensor& index) {
  return Apply1(GatherOp(IndexedDimOf(a, dim, "gather")), {a, index});
}

Tensor IndexSelect(const Tensor& a, int64_t dim, const Tensor& index) {
  constexpr const char* kName = "index_select";
  const IndexedBy by = IndexedDimOf(a, dim, kName);
  CH_CHECK_EQ(index.ndim(), 1) << kName << " of " << a.Describe()
                               << " with indices " << index.Describe();
  Shape along(static_cast<size_t>(a.ndim()), 1);
  Shape sizes = a.sizes();
  along[static_cast<size_t>(by.dim)] = index.size(0);
  sizes[static_cast<size_t>(by.dim)] = index.size(0);
  return Apply1(GatherOp(by, /*selects=*/true),
                {a, Expand(Reshape(index, along), sizes)});
}

Tensor ScatterAdd(const Tensor& base, int64_t dim, const Tensor& index,
                  const Tensor& src) {
  return Apply1(ScatterAddOp(IndexedDimOf(base, dim, "scatter_add")),
                {base, index, src});
}

Tensor Scatter(const Tensor& base, int64_t dim, const Tensor& index,
               const Tensor& src) {
  return Apply1(ScatterOp(IndexedDimOf(base, dim, "scatter")),
                {base, index, src});
}

Tensor Scatter(const Tensor& base, int64_t dim, const Tensor& index,
               double value) {
  return Apply1(ScatterOp(IndexedDimOf(base, dim, "scatter"), value),
                {base, index, Tensor()});
}

}  // namespace crosshatch
