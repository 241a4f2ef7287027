// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/float8_gather.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/nn/layers/float8.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/launch.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::fsdp {
namespace {

/// The scales of a model's float8 weights on one rank. Compute writes them, and
/// all-gather streams read them.
class WeightScales {
 public:
  explicit WeightScales(std::vector<std::shared_ptr<nn::Parameter>> weights)
      : weights_(std::move(weights)), gathered_(weights_.size(), false) {
    const NoGrad no_grad;
    scales_ = Ones({static_cast<int64_t>(size())});
    inverses_ = Ones({static_cast<int64_t>(size())});
  }

  size_t size() const { return weights_.size(); }
  const nn::Parameter* weight(size_t i) const { return weights_[i].get(); }

  /// Returns the scale of weight i, or its reciprocal: a tensor of no dims that
  /// Update fills.
  Tensor scale(size_t i) const {
    const NoGrad no_grad;
    return Select(scales_, 0, static_cast<int64_t>(i));
  }
  Tensor inverse(size_t i) const {
    const NoGrad no_grad;
    return Select(inverses_, 0, static_cast<int64_t>(i));
  }

  /// Records that weight i is gathered in float8.
  void SetGathered(size_t i) { gathered_[i] = true; }

  /// Records that weights may have changed.
  void BeginForward() { may_have_changed_ = true; }
  /// Computes the scales of the weights that are gathered, unless it has since
  /// the last BeginForward. Runs on the current stream, compute.
  void Update();

  /// Makes the current stream wait for the scales.
  void Wait() { RankContext::Current().current_stream().Wait(written_); }
  /// Records that the current stream has read them.
  void RecordRead() {
    read_ = RankContext::Current().current_stream().Record();
  }

 private:
  /// Returns the largest magnitude of this rank's shard of weight i: [1].
  Tensor LocalAmax(size_t i) const;

  const std::vector<std::shared_ptr<nn::Parameter>> weights_;
  std::vector<bool> gathered_;
  // Not from the weights' versions: ranks may differ in what they write, and
  // must agree on when to reduce.
  bool may_have_changed_ = true;
  Tensor scales_;
  Tensor inverses_;
  Event written_;
  Event read_;
};

Tensor WeightScales::LocalAmax(size_t i) const {
  const Tensor shard = LocalTensor(weights_[i]->data());
  if (shard.numel() == 0) return Zeros({1});
  return Reshape(ToDType(Max(Abs(shard)), kFloat32), {1});
}

void WeightScales::Update() {
  if (!std::exchange(may_have_changed_, false)) return;
  const NoGrad no_grad;
  // Weights on different views of the same ranks, such as those of replicated
  // heads, are reduced together.
  std::map<std::vector<int>, std::vector<size_t>> by_ranks;
  for (size_t i = 0; i < size(); ++i) {
    if (!gathered_[i]) continue;
    const auto ranks = MeshOf(weights_[i]->data()).layout().ranks();
    std::vector<int> sorted(ranks.begin(), ranks.end());
    std::sort(sorted.begin(), sorted.end());
    by_ranks[std::move(sorted)].push_back(i);
  }
  RankContext& context = RankContext::Current();
  context.current_stream().Wait(read_);
  for (const auto& [ranks, members] : by_ranks) {
    const DeviceMesh& mesh = MeshOf(weights_[members[0]]->data());
    TensorList amax;
    for (const size_t i : members) amax.push_back(LocalAmax(i));
    const auto count = static_cast<int64_t>(members.size());
    Layout partial = Layout::Replicated(mesh.layout(), 1);
    for (int axis = 0; axis < mesh.ndim(); ++axis) {
      partial = partial.WithPartial(axis, ReduceOp::kMax);
    }
    const Tensor all = LocalTensor(
        Redistribute(MakeDTensor(Cat(amax, 0), mesh, partial, {count}),
                     Layout::Replicated(mesh.layout(), 1)));
    const TensorList made =
        Apply(Float8ScaleOp(kFloat8E4M3, /*power_of_two=*/false), {&all, 1});
    if (members.size() == size()) {
      CopyInPlace(scales_, made[0]);
      CopyInPlace(inverses_, made[1]);
      continue;
    }
    for (int64_t m = 0; m < count; ++m) {
      const size_t i = members[static_cast<size_t>(m)];
      CopyInPlace(scale(i), Select(made[0], 0, m));
      CopyInPlace(inverse(i), Select(made[1], 0, m));
    }
  }
  written_ = context.current_stream().Record();
}

class Float8Hooks final : public GatherHooks {
 public:
  Float8Hooks(std::shared_ptr<WeightScales> scales, size_t index)
      : scales_(std::move(scales)),
        index_(index),
        scale_(scales_->scale(index)) {}

  std::vector<Input> Inputs(ShapeView piece) const override {
    return {{kFloat8E4M3, Shape(piece.begin(), piece.end())}};
  }
  void BeginForward() const override { scales_->BeginForward(); }
  void Prepare() const override { scales_->Update(); }
  void PreAllGather(const Tensor& shard, TensorSpan inputs) const override {
    scales_->Wait();
    internal::LaunchFloat8Convert(inputs[0], shard, scale_);
    scales_->RecordRead();
  }
  TensorList Extras(TensorSpan /*gathered*/) const override {
    return {scales_->inverse(index_)};
  }

 private:
  const std::shared_ptr<WeightScales> scales_;
  const size_t index_;
  const Tensor scale_;
};

}  // namespace

std::function<std::shared_ptr<const GatherHooks>(const nn::Parameter&)>
Float8GatherHooks(nn::Module& model) {
  std::vector<std::shared_ptr<nn::Parameter>> weights;
  for (nn::Parameter* weight :
       nn::Float8Weights(model, Float8Recipe::kTensorwise)) {
    weights.push_back(weight->shared_from_this());
  }
  const auto scales = std::make_shared<WeightScales>(std::move(weights));
  std::vector<std::shared_ptr<const GatherHooks>> hooks;
  for (size_t i = 0; i < scales->size(); ++i) {
    hooks.push_back(std::make_shared<Float8Hooks>(scales, i));
  }
  return [scales, hooks = std::move(hooks)](const nn::Parameter& parameter)
             -> std::shared_ptr<const GatherHooks> {
    for (size_t i = 0; i < hooks.size(); ++i) {
      if (scales->weight(i) != &parameter) continue;
      scales->SetGathered(i);
      return hooks[i];
    }
    return nullptr;
  };
}

}  // namespace crosshatch::fsdp
