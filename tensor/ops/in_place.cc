// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/in_place.h"

#include <bit>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/launch.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/ops/saving_node.h"

namespace crosshatch {
namespace {

using internal::BroadcastInput;
using internal::Input;
using internal::Launch;
using internal::LaunchCopy;
using internal::LaunchFill;
using internal::Output;
using internal::ToKernelShape;

/// Checks that `dst` may be written, and counts the write.
void BeginToWrite(const char* op, const Tensor& dst) {
  CH_CHECK(!Repeats(dst.sizes(), dst.strides()))
      << op << " into an expanded tensor, " << dst.Describe()
      << ": several of its elements are one";
  BeginWrite(op, dst);
}

void CheckBroadcasts(const char* op, const Tensor& dst, const Tensor& src) {
  if (src.sizes() == dst.sizes()) return;
  CH_CHECK(src.ndim() <= dst.ndim() &&
           BroadcastShapes(dst.sizes(), src.sizes(), op) == dst.sizes())
      << op << ": " << src.Describe() << " does not broadcast to "
      << dst.Describe();
}

/// Returns the gradient of a source that was broadcast and converted to the
/// written tensor.
Tensor GradientOfSource(const Tensor& grad, ShapeView sizes, DType dtype) {
  return ToDType(SumTo(grad, sizes), dtype);
}

// Returns whether the arithmetic kernels support both dtypes together.
bool Mix(DType a, DType b) {
  const auto narrow = [](DType t) {
    return t == kFloat32 || t == kBFloat16 || t == kFloat16;
  };
  return a == b || (narrow(a) && narrow(b));
}

Tensor ToMixing(const Tensor& src, DType dtype) {
  if (Mix(src.dtype(), dtype)) return src;
  Tensor converted = Empty(src.sizes(), dtype);
  LaunchCopy(converted, src);
  return converted;
}

}  // namespace

TensorList AddInPlaceOp::Forward(TensorSpan inputs) const {
  const Tensor& dst = inputs[0];
  const Tensor& src = inputs[1];
  CheckBroadcasts(kInfo.name, dst, src);
  CH_CHECK(dst.dtype() != kBool) << kInfo.name << " into " << dst.Describe();
  BeginToWrite(kInfo.name, dst);
  if (alpha == 1) {
    LaunchCopy(dst, src, WriteMode::kAccumulate);
  } else {
    UnaryArgs args;
    args.op = UnaryOp::kMulScalar;
    args.shape = ToKernelShape(dst.sizes(), kInfo.name);
    args.a = BroadcastInput(ToMixing(src, dst.dtype()), dst.sizes());
    args.out = Output(dst);
    args.scalar = alpha;
    args.mode = WriteMode::kAccumulate;
    Launch(&KernelTable::unary, args);
  }
  return {dst};
}

std::shared_ptr<Node> AddInPlaceOp::Differentiate(
    TensorSpan inputs, TensorSpan /*outputs*/) const {
  return MakeNode<0>(
      kInfo,
      [alpha = alpha, sizes = inputs[1].sizes(), dtype = inputs[1].dtype()](
          const auto&, TensorSpan grads, GradientSlots& slots) {
        if (slots.Needed(0)) slots.Put(0, grads[0]);
        if (!slots.Needed(1)) return;
        Tensor src = GradientOfSource(grads[0], sizes, dtype);
        slots.Put(1, alpha == 1 ? std::move(src) : Mul(src, alpha));
      });
}

TensorList MulInPlaceOp::Forward(TensorSpan inputs) const {
  const Tensor& dst = inputs[0];
  const Tensor& factor = inputs[1];
  CheckBroadcasts(kInfo.name, dst, factor);
  CH_CHECK(dst.dtype() != kBool) << kInfo.name << " into " << dst.Describe();
  BeginToWrite(kInfo.name, dst);
  BinaryArgs args;
  args.op = BinaryOp::kMul;
  args.shape = ToKernelShape(dst.sizes(), kInfo.name);
  args.a = Input(dst);
  args.b = BroadcastInput(ToMixing(factor, dst.dtype()), dst.sizes());
  args.out = Output(dst);
  Launch(&KernelTable::binary, args);
  return {dst};
}

TensorList ScaleInPlaceOp::Forward(TensorSpan inputs) const {
  const Tensor& dst = inputs[0];
  CH_CHECK(dst.dtype() != kBool) << kInfo.name << " of " << dst.Describe();
  BeginToWrite(kInfo.name, dst);
  UnaryArgs args;
  args.op = UnaryOp::kMulScalar;
  args.shape = ToKernelShape(dst.sizes(), kInfo.name);
  args.a = Input(dst);
  args.out = Output(dst);
  args.scalar = factor;
  Launch(&KernelTable::unary, args);
  return {dst};
}

std::shared_ptr<Node> ScaleInPlaceOp::Differentiate(
    TensorSpan /*inputs*/, TensorSpan /*outputs*/) const {
  return MakeNode<0>(kInfo, [factor = factor](const auto&, TensorSpan grads,
                                              GradientSlots& slots) {
    if (slots.Needed(0)) slots.Put(0, Mul(grads[0], factor));
  });
}

TensorList CopyInPlaceOp::Forward(TensorSpan inputs) const {
  const Tensor& dst = inputs[0];
  const Tensor& src = inputs[1];
  CheckBroadcasts(kInfo.name, dst, src);
  BeginToWrite(kInfo.name, dst);
  LaunchCopy(dst, src);
  return {dst};
}

std::shared_ptr<Node> CopyInPlaceOp::Differentiate(
    TensorSpan inputs, TensorSpan /*outputs*/) const {
  if (!IsFloatingPoint(inputs[0].dtype())) return nullptr;
  return MakeNode<0>(kInfo,
                     [sizes = inputs[1].sizes(), dtype = inputs[1].dtype()](
                         const auto&, TensorSpan grads, GradientSlots& slots) {
                       // The old content was fully replaced.
                       slots.Put(0, Tensor());
                       if (!slots.Needed(1)) return;
                       slots.Put(1, GradientOfSource(grads[0], sizes, dtype));
                     });
}

TensorList FillInPlaceOp::Forward(TensorSpan inputs) const {
  BeginToWrite(kInfo.name, inputs[0]);
  LaunchFill(inputs[0], value);
  return {inputs[0]};
}

std::shared_ptr<Node> FillInPlaceOp::Differentiate(
    TensorSpan /*inputs*/, TensorSpan /*outputs*/) const {
  return MakeNode<0>(kInfo, [](const auto&, TensorSpan, GradientSlots& slots) {
    // The old content was fully replaced.
    slots.Put(0, Tensor());
  });
}

void AddInPlace(const Tensor& dst, const Tensor& src, double alpha) {
  Apply(AddInPlaceOp(alpha), {dst, src});
}
void MulInPlace(const Tensor& dst, const Tensor& factor) {
  Apply(MulInPlaceOp(), {dst, factor});
}
void MulInPlace(const Tensor& dst, double factor) {
  Apply(ScaleInPlaceOp(factor), {&dst, 1});
}
void CopyInPlace(const Tensor& dst, const Tensor& src) {
  Apply(CopyInPlaceOp(), {dst, src});
}
void FillInPlace(const Tensor& dst, double value) {
  Apply(FillInPlaceOp(value), {&dst, 1});
}
void ZeroInPlace(const Tensor& dst) { FillInPlace(dst, 0); }

}  // namespace crosshatch
