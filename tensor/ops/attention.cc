// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/attention.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/attention_mask_grad.h"
#include "crosshatch/tensor/ops/heads.h"
#include "crosshatch/tensor/ops/launch.h"
#include "crosshatch/tensor/ops/saving_node.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

using internal::DenseHeads;
using internal::InputHeads;
using internal::LaunchWithWorkspace;
using internal::OutputHeads;

// Mask, key ranges and slopes, contiguous as kernels require. Undefined if
// absent.
struct Extras {
  Extras() = default;
  // \param inputs none, or the three.
  // \param dtype of q
  Extras(TensorSpan inputs, DType dtype) {
    if (inputs.empty()) return;
    mask = inputs[0];
    if (mask.defined() && mask.dtype() == kFloat64 && dtype != kFloat64) {
      // No float32 kernel has float64 operands.
      mask = Empty(mask.sizes(), kFloat32);
      internal::LaunchCopy(mask, inputs[0]);
    }
    if (inputs[1].defined()) key_ranges = internal::Dense(inputs[1]);
    if (inputs[2].defined()) slopes = internal::Dense(inputs[2]);
  }

  void Put(AttentionArgs& args) const {
    if (mask.defined()) {
      args.mask = internal::Input(mask);
      for (int d = 0; d < 4; ++d) {
        if (mask.size(d) == 1) args.mask.strides[d] = 0;
      }
    }
    if (key_ranges.defined()) {
      args.key_ranges = static_cast<const int32_t*>(key_ranges.raw_data());
      args.key_ranges_batch_stride =
          key_ranges.size(0) == 1 ? 0 : key_ranges.size(1) * 2;
    }
    if (slopes.defined()) {
      args.slopes = static_cast<const float*>(slopes.raw_data());
    }
  }

  Tensor mask;
  Tensor key_ranges;
  Tensor slopes;
};

AttentionArgs MakeArgs(const Tensor& q, const Tensor& k, const Tensor& v,
                       const Extras& extras, const Tensor& out,
                       const Tensor& logsumexp,
                       const AttentionAttributes& attributes) {
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
  args.scale = attributes.scale;
  args.causal = attributes.causal;
  // At most the sum of all lengths, so that no sum with it overflows.
  args.window = std::min(attributes.window, args.q_len + args.kv_len);
  extras.Put(args);
  const AttentionDropout& dropout = attributes.dropout;
  args.dropout = dropout.p;
  args.dropout_key = dropout.key;
  args.dropout_stream = dropout.step;
  args.first_row = dropout.first_row;
  args.first_head = dropout.first_head;
  args.total_heads = dropout.heads == 0 ? args.q_heads : dropout.heads;
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

// \param q, k have global sizes, and were checked.
void CheckOptions(const Tensor& q, const Tensor& k,
                  const AttentionOptions& options) {
  const char* const name = AttentionOp::kInfo.name;
  const int64_t batch = q.size(0);
  const int64_t heads = q.size(2);
  CH_CHECK_GE(options.window, 0) << name << ": options.window";
  const AttentionDropout& dropout = options.dropout;
  CH_CHECK(dropout.p >= 0 && dropout.p <= 1)
      << name << " of q " << q.Describe() << " with dropout.p = " << dropout.p;
  CH_CHECK(dropout.first_row >= 0 && dropout.first_head >= 0 &&
           (dropout.heads == 0 ? dropout.first_head == 0
                               : dropout.first_head + heads <= dropout.heads))
      << name << " of q " << q.Describe() << ": dropout of its heads from "
      << dropout.first_head << " on of " << dropout.heads << ", of rows from "
      << dropout.first_row << " on";
  CH_CHECK(!options.slopes.defined() || !options.slopes.requires_grad() ||
           !RankContext::Current().grad_enabled())
      << name << ": options.slopes " << options.slopes.Describe()
      << " requires a gradient, which attention does not compute; Detach it, "
         "or give a mask of slopes times distances, whose gradient it does";
  if (options.mask.defined()) {
    const Tensor& mask = options.mask;
    const Shape whole = {batch, heads, q.size(1), k.size(1)};
    bool fits = mask.ndim() <= 4 &&
                (mask.dtype() == kBool || IsFloatingPoint(mask.dtype()));
    for (int d = 1; fits && d <= mask.ndim(); ++d) {
      fits = mask.size(mask.ndim() - d) == 1 ||
             mask.size(mask.ndim() - d) == whole[static_cast<size_t>(4 - d)];
    }
    CH_CHECK(fits) << name << ": options.mask " << mask.Describe()
                   << " is not a bool or floating point tensor that "
                   << "broadcasts to " << ToString(whole)
                   << ", [batch, query heads, queries, keys]";
  }
  if (options.key_ranges.defined()) {
    const Tensor& ranges = options.key_ranges;
    CH_CHECK(ranges.dtype() == kInt32 && ranges.ndim() == 3 &&
             (ranges.size(0) == 1 || ranges.size(0) == batch) &&
             ranges.size(1) == q.size(1) && ranges.size(2) == 2)
        << name << ": options.key_ranges " << ranges.Describe()
        << " is not i32[" << batch << " or 1, " << q.size(1) << ", 2]";
  }
  if (options.slopes.defined()) {
    CH_CHECK(options.slopes.dtype() == kFloat32 &&
             options.slopes.sizes() == Shape({heads}))
        << name << ": options.slopes " << options.slopes.Describe()
        << " is not f32[" << heads << "], one of each query head";
  }
}

// Prepends dims of size 1.
Tensor MaskOfFourDims(const Tensor& mask) {
  if (!mask.defined() || mask.ndim() == 4) return mask;
  Tensor spread = mask;
  while (spread.ndim() < 4) spread = Unsqueeze(spread, 0);
  return spread;
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
  const Extras extras(inputs.subspan(3), q.dtype());
  AttentionArgs args = MakeArgs(q, k, v, extras, out, logsumexp, attributes);
  LaunchWithWorkspace(&KernelTable::attention_workspace_bytes,
                      &KernelTable::attention, args);
  return {std::move(out), std::move(logsumexp)};
}

std::shared_ptr<Node> AttentionOp::Differentiate(TensorSpan inputs,
                                                 TensorSpan outputs) const {
  constexpr size_t kSaved = 8;
  // Lists the inputs of the gradient that are defined, and marks the others.
  size_t count = 2;
  std::array<bool, kSaved> is_there = {false, false, false, true, true};
  for (size_t i = 0; i < inputs.size(); ++i, ++count) {
    is_there[i < 3 ? i : i + 2] = inputs[i].defined();
  }
  const bool has_mask = inputs.size() > 3 && inputs[3].defined();
  auto node = MakeNode<kSaved>(
      kInfo, [attributes = attributes, count, is_there, has_mask](
                 const auto& self, TensorSpan grads, GradientSlots& slots) {
        TensorList from = {grads[0]};
        for (size_t i = 0; i < count; ++i) {
          from.push_back(is_there[i] ? self.Saved(i) : Tensor());
        }
        if (slots.Needed(0) || slots.Needed(1) || slots.Needed(2)) {
          TensorList gradients = Apply(AttentionBackwardOp(attributes), from);
          for (int i = 0; i < 3; ++i) {
            if (slots.Needed(i)) {
              slots.Put(i, std::move(gradients[static_cast<size_t>(i)]));
            }
          }
        }
        if (!has_mask || !slots.Needed(3)) return;
        // Without out and logsumexp.
        from.erase(from.begin() + 4, from.begin() + 6);
        slots.Put(3, Apply1(AttentionMaskGradOp(attributes), from));
      });
  for (size_t i = 0; i < 3; ++i) node->Save(i, inputs[i]);
  for (size_t i = 0; i < 2; ++i) node->SaveOutput(3 + i, outputs[i]);
  for (size_t i = 3; i < inputs.size(); ++i) node->Save(2 + i, inputs[i]);
  return node;
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
  const Extras extras(inputs.subspan(6), q.dtype());
  AttentionBackwardArgs args;
  args.forward = MakeArgs(q, k, v, extras, out, logsumexp, attributes);
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

AttentionAttributes AttentionAttributes::OfPart(int64_t rows, int64_t heads,
                                                int64_t all_heads) const {
  AttentionAttributes part = *this;
  part.dropout.first_row += rows;
  part.dropout.first_head += heads;
  if (part.dropout.heads == 0) part.dropout.heads = all_heads;
  return part;
}

void AttentionAttributes::AppendKey(OpKey& key) const {
  key.push_back(std::bit_cast<int64_t>(scale));
  key.push_back(causal);
  key.push_back(window);
  // The dropout differs from step to step, but the distribution of a call does
  // not depend on it.
  key.push_back(dropout.p > 0);
}

Tensor Attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& options) {
  AttentionAttributes attributes = {.causal = options.causal,
                                    .window = options.window,
                                    .dropout = options.dropout};
  TensorList inputs = {q, k, v};
  if (q.defined() && k.defined() && v.defined()) {
    Check(q, k, v);
    attributes.scale = options.scale.value_or(
        1 / std::sqrt(static_cast<double>(std::max<int64_t>(q.size(3), 1))));
    CheckOptions(q, k, options);
    if (options.mask.defined() || options.key_ranges.defined() ||
        options.slopes.defined()) {
      inputs.push_back(MaskOfFourDims(options.mask));
      inputs.push_back(options.key_ranges);
      inputs.push_back(options.slopes);
    }
  }
  return Apply1(AttentionOp(attributes), inputs);
}

Tensor CausalAttention(const Tensor& q, const Tensor& k, const Tensor& v,
                       double scale, int64_t window) {
  return Attention(q, k, v, {.scale = scale, .causal = true, .window = window});
}

Tensor AlibiSlopes(int64_t heads) {
  CH_CHECK_GE(heads, 0) << "AlibiSlopes";
  std::vector<float> slopes;
  // Appends every `step`th of the slopes for `count` heads, a power of two.
  const auto append = [&](int64_t count, int64_t step) {
    for (int64_t i = 1; i <= count && std::ssize(slopes) < heads; i += step) {
      slopes.push_back(static_cast<float>(std::exp2(
          -8.0 * static_cast<double>(i) / static_cast<double>(count))));
    }
  };
  if (heads > 0) {
    const auto below =
        static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(heads)));
    append(below, 1);
    append(2 * below, 2);
  }
  return FromValues<float>({heads}, absl::MakeConstSpan(slopes));
}

}  // namespace crosshatch
