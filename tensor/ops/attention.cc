// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/attention.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/launch.h"
#include "crosshatch/tensor/ops/saving_node.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

using internal::LaunchWithWorkspace;

// Returns `x`, or a copy whose last dim is contiguous.
Tensor DenseHeads(const Tensor& x) {
  return x.size(3) <= 1 || x.strides()[3] == 1 ? x : internal::Dense(x);
}

// \pre the last dim is contiguous
HeadsInput InputHeads(const Tensor& x) {
  return {x.raw_data(), x.strides()[0], x.strides()[1], x.strides()[2]};
}
HeadsOutput OutputHeads(const Tensor& x) {
  return {x.raw_data(), x.strides()[0], x.strides()[1], x.strides()[2]};
}

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
  if (dropout.p > 0) {
    RankContext::Current().BreakCapture("attention with dropout");
  }
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
  // Lists the defined inputs of the gradient, and marks the undefined ones.
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
  node->SaveOutput(3, outputs[0]);
  node->SaveOutput(4, outputs[1], 1);
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

AttentionAttributes AttentionAttributes::OfPart(int64_t rows, int64_t heads,
                                                int64_t all_heads) const {
  AttentionAttributes part = *this;
  part.dropout.first_row += rows;
  part.dropout.first_head += heads;
  if (part.dropout.heads == 0) part.dropout.heads = all_heads;
  return part;
}

void AttentionAttributes::AppendKey(OpKey& key) const {
  // The dropout differs from step to step, but the distribution of a call does
  // not depend on it.
  AppendTo(key, scale, causal, window, dropout.p > 0);
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

TensorList RopeOp::Forward(TensorSpan inputs) const {
  CH_CHECK_EQ(inputs[0].ndim(), 4) << "rope of " << inputs[0].Describe();
  const Tensor x = DenseHeads(inputs[0]);
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
  args.x = InputHeads(x);
  args.out = OutputHeads(out);
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

Tensor ApplyRope(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  return Apply1(RopeOp(/*inverse=*/false), {x, cos, sin});
}

namespace {

// Calls each(row, document, begin, length) for the documents in order.
template <typename F>
void ForDocuments(const DocumentLengths& lengths, int64_t row_length,
                  F&& each) {
  for (size_t row = 0; row < lengths.size(); ++row) {
    int64_t begin = 0;
    for (size_t i = 0; i < lengths[row].size(); ++i) {
      const int64_t length = lengths[row][i];
      CH_CHECK(length >= 0 && length <= row_length - begin)
          << "documents of row " << row << ": document " << i << " of "
          << length << " tokens, where " << row_length - begin
          << " are left of a row of " << row_length;
      each(row, i, begin, length);
      begin += length;
    }
  }
}

void CheckLength(const char* name, int64_t length) {
  CH_CHECK(length >= 0 && length <= std::numeric_limits<int32_t>::max())
      << name << ": rows of " << length << " tokens";
}

}  // namespace

Tensor DocumentKeys(const DocumentLengths& lengths, int64_t length) {
  return DocumentKeys(lengths, lengths, length);
}

Tensor DocumentKeys(const DocumentLengths& query_lengths,
                    const DocumentLengths& key_lengths, int64_t length) {
  CheckLength("DocumentKeys", length);
  CH_CHECK_EQ(query_lengths.size(), key_lengths.size())
      << "DocumentKeys: rows of queries and of keys";
  // Ranges of keys by row and document.
  std::vector<std::vector<int32_t>> begins(key_lengths.size());
  for (size_t row = 0; row < key_lengths.size(); ++row) {
    CH_CHECK_EQ(query_lengths[row].size(), key_lengths[row].size())
        << "DocumentKeys: documents of queries and of keys in row " << row;
    int64_t begin = 0;
    for (const int64_t count : key_lengths[row]) {
      CH_CHECK(count >= 0 &&
               count <= std::numeric_limits<int32_t>::max() - begin)
          << "DocumentKeys: a document of " << count << " keys in row " << row;
      begins[row].push_back(static_cast<int32_t>(begin));
      begin += count;
    }
    begins[row].push_back(static_cast<int32_t>(begin));
  }
  std::vector<int32_t> ranges(query_lengths.size() *
                              static_cast<size_t>(length) * 2);
  ForDocuments(query_lengths, length,
               [&](size_t row, size_t document, int64_t begin, int64_t count) {
                 auto at = row * static_cast<size_t>(length) +
                           static_cast<size_t>(begin);
                 for (int64_t i = 0; i < count; ++i, ++at) {
                   ranges[2 * at] = begins[row][document];
                   ranges[2 * at + 1] = begins[row][document + 1];
                 }
               });
  return FromValues<int32_t>({std::ssize(query_lengths), length, 2},
                             absl::MakeConstSpan(ranges));
}

Tensor DocumentPositions(const DocumentLengths& lengths, int64_t length) {
  CheckLength("DocumentPositions", length);
  std::vector<int32_t> positions(lengths.size() * static_cast<size_t>(length));
  ForDocuments(
      lengths, length,
      [&](size_t row, size_t /*document*/, int64_t begin, int64_t count) {
        const auto at =
            row * static_cast<size_t>(length) + static_cast<size_t>(begin);
        for (int64_t i = 0; i < count; ++i) {
          positions[at + static_cast<size_t>(i)] = static_cast<int32_t>(i);
        }
      });
  return FromValues<int32_t>({std::ssize(lengths), length},
                             absl::MakeConstSpan(positions));
}

}  // namespace crosshatch
