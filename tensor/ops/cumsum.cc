// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/cumsum.h"

#include <utility>

#include "crosshatch/tensor/creation.h"
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
  return MakeNode<0>(
      kInfo, [dim = dim, reverse = reverse](const auto&, TensorSpan grads,
                                            GradientSlots& slots) {
        slots.Put(0, Apply1(CumSumOp(dim, !reverse), {grads[0]}));
      });
}

void CumSumOp::AppendKey(OpKey& key) const {
  key.push_back(dim);
  key.push_back(reverse);
}

Tensor CumSum(const Tensor& a, int64_t dim) {
  const int ndim = a.ndim() == 0 ? 1 : a.ndim();
  const int normal = NormalizeDim(dim, ndim, CumSumOp::kInfo.name);
  if (a.ndim() == 0) return Reshape(CumSum(Reshape(a, {1}), 0), {});
  return Apply1(CumSumOp(normal), {&a, 1});
}

}  // namespace crosshatch
