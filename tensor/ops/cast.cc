// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/cast.h"

#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/launch.h"
#include "crosshatch/tensor/ops/saving_node.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {

TensorList CastOp::Forward(TensorSpan inputs) const {
  const DType from = inputs[0].dtype();
  Tensor out = Empty(inputs[0].sizes(), dtype);
  if (IsStorageOnly(from) || IsStorageOnly(dtype)) {
    const DType other = IsFloat8(from) ? dtype : from;
    CH_CHECK(IsFloat8(from) != IsFloat8(dtype) && IsFloatingPoint(other) &&
             other != kFloat64)
        << kInfo.name << " of " << inputs[0].Describe() << " to " << Name(dtype)
        << ": float8 is converted from and to f32, bf16 and f16";
    internal::LaunchFloat8Convert(out, inputs[0], Tensor());
    return {std::move(out)};
  }
  internal::LaunchCopy(out, inputs[0]);
  return {std::move(out)};
}

std::shared_ptr<Node> CastOp::Differentiate(TensorSpan inputs,
                                            TensorSpan /*outputs*/) const {
  if (!IsFloatingPoint(dtype)) return nullptr;
  return MakeNode(kInfo, [from = inputs[0].dtype()](const Tensor& g) {
    return IsFloat8(from) ? g : ToDType(g, from);
  });
}

TensorList CloneOp::Forward(TensorSpan inputs) const {
  const Tensor& a = inputs[0];
  Tensor out = Empty(a.sizes(), a.dtype());
  internal::LaunchCopy(out, a);
  RankContext::Current().AddCopiedBytes(out.numel() * SizeOf(out.dtype()));
  return {std::move(out)};
}

std::shared_ptr<Node> CloneOp::Differentiate(TensorSpan /*inputs*/,
                                             TensorSpan /*outputs*/) const {
  return MakeNode(kInfo, [](const Tensor& g) { return g; });
}

Tensor ToDType(const Tensor& a, DType dtype) {
  if (a.dtype() == dtype) return a;
  return Apply1(CastOp(dtype), {&a, 1});
}

Tensor Contiguous(const Tensor& a) { return a.is_contiguous() ? a : Clone(a); }

Tensor Clone(const Tensor& a) { return Apply1(CloneOp(), {&a, 1}); }

}  // namespace crosshatch
