// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/attention.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/dropout.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/matmul.h"
#include "crosshatch/tensor/ops/norm.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

// The gradient for one head of one row of the batch. Letters are those of
// attention.h.
class MaskGradient {
 public:
  MaskGradient(TensorSpan inputs, const AttentionMaskGradOp& op)
      : grad_(inputs[0]),
        q_(inputs[1]),
        k_(inputs[2]),
        v_(inputs[3]),
        mask_(inputs[4]),
        key_ranges_(inputs[5]),
        slopes_(inputs[6]),
        attributes_(op.attributes),
        key_heads_(op.key_heads),
        wide_(StatisticsDType(q_.dtype())),
        none_(Full({}, -std::numeric_limits<double>::infinity(), wide_)),
        zero_(Full({}, 0, wide_)) {
    // The key at a query's position, and all keys, as columns and rows.
    const int64_t length = q_.size(1);
    const Tensor query = View(Arange(length, kInt64), {length, 1});
    const auto to_keys = static_cast<double>(k_.size(1) - length);
    own_ = Add(query, to_keys);
    key_ = View(Arange(k_.size(1), kInt64), {1, k_.size(1)});
    by_place_ = SeenByPlace();
  }

  // Returns the gradient of the scores [T, S].
  Tensor OfScores(int64_t row, int64_t head) const {
    const int64_t group =
        key_heads_.group == 0 ? q_.size(2) / k_.size(2) : key_heads_.group;
    const int64_t key_head = (key_heads_.first_query + head) / group;
    const Tensor seen = Seen(row);
    Tensor scores =
        Mul(MatMul(Head(q_, row, head), Head(k_, row, key_head), false, true),
            attributes_.scale);
    scores = Add(scores, ToDType(MaskOf(mask_, row, head), wide_));
    if (slopes_.defined()) {
      const Tensor distance = ToDType(Abs(Sub(own_, key_)), wide_);
      const Tensor slope = ToDType(Select(slopes_, 0, head), wide_);
      scores = Sub(scores, Mul(distance, slope));
    }
    scores = Where(seen, scores, none_);
    // A query without keys has no probabilities. If its scores are NaN, so are
    // its probabilities.
    const Tensor sees = NotEqual(Max(scores, {-1}, /*keepdim=*/true), none_);
    const Tensor p = Where(LogicalAnd(seen, sees), Softmax(scores), zero_);
    Tensor dp =
        MatMul(Head(grad_, row, head), Head(v_, row, key_head), false, true);
    // Masked elements may have any value.
    dp = Where(seen, Dropped(dp, row, head), zero_);
    const Tensor mean = Sum(Mul(p, dp), {-1}, /*keepdim=*/true);
    return Mul(p, Sub(dp, mean));
  }

  // Returns the part [T or 1, S or 1] of a mask or of its gradient.
  static Tensor MaskOf(const Tensor& mask, int64_t row, int64_t head) {
    const Tensor of_row = Select(mask, 0, mask.size(0) == 1 ? 0 : row);
    return Select(of_row, 0, mask.size(1) == 1 ? 0 : head);
  }

  DType wide() const { return wide_; }

 private:
  // [length, D]
  Tensor Head(const Tensor& t, int64_t row, int64_t head) const {
    return ToDType(Select(Select(t, 0, row), 1, head), wide_);
  }

  // Returns which keys queries attend to by causal and window, bool [T, S].
  Tensor SeenByPlace() const {
    Tensor seen = GreaterEqual(Add(key_, ZerosLike(own_)), ZerosLike(key_));
    if (attributes_.causal) seen = LogicalAnd(seen, LessEqual(key_, own_));
    if (attributes_.window > 0) {
      // At most the sum of all lengths, so that no sum with it overflows.
      const int64_t window =
          std::min(attributes_.window, q_.size(1) + k_.size(1));
      seen = LogicalAnd(seen,
                        Greater(key_, Sub(own_, static_cast<double>(window))));
    }
    return seen;
  }

  Tensor Seen(int64_t row) const {
    if (!key_ranges_.defined()) return by_place_;
    const Tensor ranges = ToDType(
        Select(key_ranges_, 0, key_ranges_.size(0) == 1 ? 0 : row), kInt64);
    const Tensor begin = Slice(ranges, 1, 0, 1);
    const Tensor end = Slice(ranges, 1, 1, 2);
    return LogicalAnd(by_place_,
                      LogicalAnd(GreaterEqual(key_, begin), Less(key_, end)));
  }

  // Drops the same elements as attention drops of the probabilities.
  Tensor Dropped(const Tensor& dp, int64_t row, int64_t head) const {
    const AttentionDropout& dropout = attributes_.dropout;
    if (dropout.p == 0) return dp;
    const Shape part = {1, 1, dp.size(0), dp.size(1)};
    const int64_t heads = dropout.heads == 0 ? q_.size(2) : dropout.heads;
    const Tensor dropped =
        DropoutOp(dropout.p, dropout.key, dropout.step, dropout.first_row)
            .ForwardPart(View(dp, part), {row, dropout.first_head + head, 0, 0},
                         {q_.size(0), heads, dp.size(0), dp.size(1)});
    return View(dropped, dp.sizes());
  }

  const Tensor& grad_;
  const Tensor& q_;
  const Tensor& k_;
  const Tensor& v_;
  const Tensor& mask_;
  const Tensor& key_ranges_;
  const Tensor& slopes_;
  const AttentionAttributes& attributes_;
  const AttentionKeyHeads& key_heads_;
  const DType wide_;
  const Tensor none_;
  const Tensor zero_;
  Tensor own_;       // [T, 1]
  Tensor key_;       // [1, S]
  Tensor by_place_;  // [T, S]
};

}  // namespace

TensorList AttentionMaskGradOp::Forward(TensorSpan inputs) const {
  const NoGrad no_grad;
  const Tensor& q = inputs[1];
  const Tensor& mask = inputs[4];
  CH_CHECK(mask.ndim() == 4 && IsFloatingPoint(mask.dtype()))
      << kInfo.name << " of the mask " << mask.Describe();
  Tensor sum = Zeros(mask.sizes(), StatisticsDType(q.dtype()));
  if (sum.numel() > 0 && q.size(1) > 0 && inputs[2].size(1) > 0) {
    const MaskGradient gradient(inputs, *this);
    for (int64_t row = 0; row < q.size(0); ++row) {
      for (int64_t head = 0; head < q.size(2); ++head) {
        const Tensor to = MaskGradient::MaskOf(sum, row, head);
        AddInPlace(to, SumTo(gradient.OfScores(row, head), to.sizes()));
      }
    }
  }
  return {ToDType(sum, mask.dtype())};
}

}  // namespace crosshatch
