// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/rope.h"

#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/heads.h"
#include "crosshatch/tensor/ops/launch.h"
#include "crosshatch/tensor/ops/saving_node.h"

namespace crosshatch {

TensorList RopeOp::Forward(TensorSpan inputs) const {
  CH_CHECK_EQ(inputs[0].ndim(), 4) << "rope of " << inputs[0].Describe();
  const Tensor x = internal::DenseHeads(inputs[0]);
  const Tensor cos = internal::Dense(inputs[1]);
  const Tensor sin = internal::Dense(inputs[2]);
  const bool own_tables = cos.ndim() == 3;
  const Shape table = own_tables ? Shape({x.size(0), x.size(1), x.size(3) / 2})
                                 : Shape({x.size(1), x.size(3) / 2});
  CH_CHECK(x.size(3) % 2 == 0 && cos.sizes() == sin.sizes() &&
           cos.sizes() == table && cos.dtype() == kFloat32 &&
           sin.dtype() == kFloat32)
      << "rope of x " << x.Describe() << ", cos " << cos.Describe()
      << " and sin " << sin.Describe()
      << ": wants [B, T, H, D] and twice f32[T, D/2] or f32[B, T, D/2]";
  internal::CheckFloating(kInfo.name, x);
  Tensor out = Empty(x.sizes(), x.dtype());
  RopeArgs args;
  args.batch = x.size(0);
  args.time = x.size(1);
  args.heads = x.size(2);
  args.head_dim = x.size(3);
  args.x = internal::InputHeads(x);
  args.out = internal::OutputHeads(out);
  args.cos = static_cast<const float*>(cos.raw_data());
  args.sin = static_cast<const float*>(sin.raw_data());
  args.dtype = x.dtype();
  args.inverse = inverse;
  if (own_tables) args.table_batch_stride = x.size(1) * (x.size(3) / 2);
  internal::Launch(&KernelTable::rope, args);
  return {std::move(out)};
}

std::shared_ptr<Node> RopeOp::Differentiate(TensorSpan inputs,
                                            TensorSpan /*outputs*/) const {
  CH_CHECK(!inputs[1].requires_grad() && !inputs[2].requires_grad())
      << "rope has no gradient by cos and sin";
  auto node =
      MakeNode<2>(kInfo, [inverse = inverse](const auto& self, TensorSpan grads,
                                             GradientSlots& slots) {
        slots.Put(0, Apply1(RopeOp(!inverse),
                            {grads[0], self.Saved(0), self.Saved(1)}));
      });
  node->Save(0, inputs[1]);
  node->Save(1, inputs[2]);
  return node;
}

void RopeOp::AppendKey(OpKey& key) const { key.push_back(inverse); }

Tensor ApplyRope(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  return Apply1(RopeOp(/*inverse=*/false), {x, cos, sin});
}

}  // namespace crosshatch
