// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/attention.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/heads.h"
#include "crosshatch/tensor/ops/launch.h"
#include "crosshatch/tensor/ops/saving_node.h"

namespace crosshatch {
namespace {

using internal::DenseHeads;
using internal::InputHeads;
using internal::LaunchWithWorkspace;
using internal::OutputHeads;

AttentionArgs MakeArgs(const Tensor& q, const Tensor& k, const Tensor& v,
                       const Tensor& out, const Tensor& logsumexp, double scale,
                       AttentionMask mask) {
  AttentionArgs args;
  args.batch = q.size(0);
  args.q_len = q.size(1);
  args.kv_len = k.size(1);
  args.q_heads = q.size(2);
  args.kv_heads = k.size(2);
  args.head_dim = q.size(3);
  args.q = InputHeads(q);
  args.k = InputHeads(k);
  args.v = InputHeads(v);
  args.out = OutputHeads(out);
  args.logsumexp = logsumexp.raw_data();
  args.dtype = q.dtype();
  args.scale = scale;
  args.causal = mask.causal;
  // No wider than all lengths, so that no sum with it overflows.
  args.window = std::min(mask.window, args.q_len + args.kv_len);
  return args;
}

void Check(const Tensor& q, const Tensor& k, const Tensor& v) {
  const char* const name = AttentionOp::kInfo.name;
  const bool fits =
      q.ndim() == 4 && k.ndim() == 4 && k.sizes() == v.sizes() &&
      q.size(0) == k.size(0) && q.size(3) == k.size(3) &&
      (k.size(2) == 0 ? q.size(2) == 0 : q.size(2) % k.size(2) == 0);
  CH_CHECK(fits) << name << " of q " << q.Describe() << ", k " << k.Describe()
                 << " and v " << v.Describe()
                 << ": wants [B, T, Hq, D] and twice [B, S, Hkv, D] with Hkv "
                    "dividing Hq";
  internal::CheckSameDType(name, q, k);
  internal::CheckSameDType(name, q, v);
  internal::CheckFloating(name, q);
}

}  // namespace

TensorList AttentionOp::Forward(TensorSpan inputs) const {
  Check(inputs[0], inputs[1], inputs[2]);
  const Tensor q = DenseHeads(inputs[0]);
  const Tensor k = DenseHeads(inputs[1]);
  const Tensor v = DenseHeads(inputs[2]);
  Tensor out = Empty(q.sizes(), q.dtype());
  Tensor logsumexp =
      Empty({q.size(0), q.size(2), q.size(1)}, StatisticsDType(q.dtype()));
  LaunchWithWorkspace(&KernelTable::attention_workspace_bytes,
                      &KernelTable::attention,
                      MakeArgs(q, k, v, out, logsumexp, scale, mask));
  return {std::move(out), std::move(logsumexp)};
}

std::shared_ptr<Node> AttentionOp::Differentiate(TensorSpan inputs,
                                                 TensorSpan outputs) const {
  auto node = internal::MakeNode<5>(
      kInfo, [scale = scale, mask = mask](const auto& self, TensorSpan grads,
                                          GradientSlots& slots) {
        TensorList gradients =
            Apply(AttentionBackwardOp(scale, mask),
                  {grads[0], self.Saved(0), self.Saved(1), self.Saved(2),
                   self.Saved(3), self.Saved(4)});
        for (int i = 0; i < 3; ++i) {
          if (slots.Needed(i)) {
            slots.Put(i, std::move(gradients[static_cast<size_t>(i)]));
          }
        }
      });
  for (size_t i = 0; i < 3; ++i) node->Save(i, inputs[i]);
  for (size_t i = 0; i < 2; ++i) node->SaveOutput(3 + i, outputs[i]);
  return node;
}

void AttentionOp::AppendKey(OpKey& key) const {
  key.push_back(std::bit_cast<int64_t>(scale));
  key.push_back(mask.causal);
  key.push_back(mask.window);
}

TensorList AttentionBackwardOp::Forward(TensorSpan inputs) const {
  Check(inputs[1], inputs[2], inputs[3]);
  const Tensor grad = DenseHeads(inputs[0]);
  const Tensor q = DenseHeads(inputs[1]);
  const Tensor k = DenseHeads(inputs[2]);
  const Tensor v = DenseHeads(inputs[3]);
  const Tensor out = DenseHeads(inputs[4]);
  const Tensor logsumexp = internal::Dense(inputs[5]);
  CH_CHECK(grad.sizes() == q.sizes() && out.sizes() == q.sizes())
      << kInfo.name << " of " << grad.Describe() << " and " << q.Describe();
  internal::CheckSameDType(kInfo.name, grad, q);
  Tensor dq = Empty(q.sizes(), q.dtype());
  Tensor dk = Empty(k.sizes(), k.dtype());
  Tensor dv = Empty(v.sizes(), v.dtype());
  AttentionBackwardArgs args;
  args.forward = MakeArgs(q, k, v, out, logsumexp, scale, mask);
  args.grad = InputHeads(grad);
  args.dq = OutputHeads(dq);
  args.dk = OutputHeads(dk);
  args.dv = OutputHeads(dv);
  LaunchWithWorkspace(&KernelTable::attention_backward_workspace_bytes,
                      &KernelTable::attention_backward, args);
  return {std::move(dq), std::move(dk), std::move(dv)};
}

std::shared_ptr<Node> AttentionBackwardOp::Differentiate(
    TensorSpan inputs, TensorSpan /*outputs*/) const {
  CH_CHECK(false) << kInfo.name << " of " << inputs[1].Describe()
                  << ": attention is differentiable once; run Backward "
                     "without create_graph";
  return nullptr;
}

void AttentionBackwardOp::AppendKey(OpKey& key) const {
  key.push_back(std::bit_cast<int64_t>(scale));
  key.push_back(mask.causal);
  key.push_back(mask.window);
}

Tensor CausalAttention(const Tensor& q, const Tensor& k, const Tensor& v,
                       double scale, int64_t window) {
  CH_CHECK_GE(window, 0) << AttentionOp::kInfo.name;
  return Apply1(AttentionOp(scale, {.causal = true, .window = window}),
                {q, k, v});
}

Tensor Attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 double scale) {
  return Apply1(AttentionOp(scale, {.causal = false}), {q, k, v});
}

}  // namespace crosshatch
