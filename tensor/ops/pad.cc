// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/pad.h"

#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/launch.h"
#include "crosshatch/tensor/ops/saving_node.h"
#include "crosshatch/tensor/ops/view.h"

namespace crosshatch {

TensorList PadOp::Forward(TensorSpan inputs) const {
  const Tensor& a = inputs[0];
  const auto d = static_cast<size_t>(dim);
  Shape sizes = a.sizes();
  sizes[d] += before + after;
  Tensor out = Empty(sizes, a.dtype());
  // Each element is written once: the part before, a, the part after.
  const auto part = [&](int64_t start, int64_t length) {
    Shape part_sizes = sizes;
    part_sizes[d] = length;
    return MakeView(out.storage(), start * out.strides()[d],
                    std::move(part_sizes), out.strides(), out.dtype());
  };
  if (before > 0) internal::LaunchFill(part(0, before), 0);
  internal::LaunchCopy(part(before, a.sizes()[d]), a);
  if (after > 0) internal::LaunchFill(part(before + a.sizes()[d], after), 0);
  return {std::move(out)};
}

std::shared_ptr<Node> PadOp::Differentiate(TensorSpan inputs,
                                           TensorSpan /*outputs*/) const {
  return MakeNode<0>(
      kInfo, [dim = dim, start = before, end = before + inputs[0].size(dim)](
                 const auto&, TensorSpan grads, GradientSlots& slots) {
        slots.Put(0, Slice(grads[0], dim, start, end));
      });
}

void PadOp::AppendKey(OpKey& key) const {
  key.push_back(dim);
  key.push_back(before);
  key.push_back(after);
}

Tensor Pad(const Tensor& a, int64_t dim, int64_t before, int64_t after) {
  CH_CHECK(before >= 0 && after >= 0)
      << "pad of " << a.Describe() << " by " << before << " and " << after;
  return Apply1(PadOp(NormalizeDim(dim, a.ndim(), "pad"), before, after),
                {&a, 1});
}

}  // namespace crosshatch
