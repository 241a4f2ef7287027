// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/cast.h"

#include <utility>

#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/launch.h"
#include "crosshatch/tensor/ops/saving_node.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {

TensorList CastOp::Forward(TensorSpan inputs) const {
  Tensor out = Empty(inputs[0].sizes(), dtype);
  internal::LaunchCopy(out, inputs[0]);
  return {std::move(out)};
}

std::shared_ptr<Node> CastOp::Differentiate(TensorSpan inputs,
                                            TensorSpan /*outputs*/) const {
  if (!IsFloatingPoint(dtype)) return nullptr;
  return MakeNode(kInfo, [from = inputs[0].dtype()](const Tensor& g) {
    return ToDType(g, from);
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
