// SPDX-License-Identifier: Apache-2.0

/// \file
/// Groups of a single FullyShard call on parameters of several dtypes, frozen,
/// tied and ignored ones, and two layouts of tensor parallelism. They train as
/// one rank does and take no more memory than groups made by hand. Arithmetic
/// is on small integers, exact in bfloat16.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/summon.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/fsdp/training_testutil.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

constexpr int64_t kDim = 3;
constexpr int64_t kHidden = 4;
constexpr int64_t kLow = 2;

void FillWithIntegers(nn::Module& model) {
  int64_t salt = 0;
  for (nn::Parameter* p : model.Parameters()) {
    p->set_data(
        ToDType(SmallIntegers(p->data().sizes(), ++salt), p->data().dtype()));
  }
}

/// A low-rank product in bfloat16.
class Adapter final : public nn::Module {
 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    const Tensor low =
        crosshatch::Linear(ToDType(inputs[0], kBFloat16), a_.Get(), Tensor());
    return {ToDType(crosshatch::Linear(low, b_.Get(), Tensor()), kFloat32)};
  }

 private:
  nn::Parameter& a_ = MakeParameter("a", {kLow, kDim}, {}, kBFloat16);
  nn::Parameter& b_ = MakeParameter("b", {kDim, kLow}, {}, kBFloat16);
};

/// Computes base(x) + adapter(x). The base may be frozen.
class Adapted final : public nn::Module {
 public:
  explicit Adapted(bool frozen = true) {
    base_.weight()->set_requires_grad(!frozen);
  }
  Adapter& adapter() { return adapter_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {Add(base_.Forward(inputs[0]), adapter_.Forward(inputs[0]))};
  }

 private:
  nn::Linear& base_ = Make<nn::Linear>("base", kDim, kDim);
  Adapter& adapter_ = Make<Adapter>("adapter");
};

/// Computes scale * (down(relu(up(y))) + adapted(y)) + offset of y = first(x).
class Middle final : public nn::Module {
 public:
  explicit Middle(std::shared_ptr<nn::Parameter> tied)
      : first_(Make<nn::Linear>("first", std::move(tied))) {
    offset_.set_requires_grad(false);
  }
  const nn::Parameter& offset() const { return offset_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    const Tensor y = first_.Forward(inputs[0]);
    const Tensor sum =
        Add(down_.Forward(Relu(up_.Forward(y))), adapted_.Forward(y));
    const Tensor scaled = Mul(ToDType(sum, kFloat64), scale_.Get());
    return {Add(ToDType(scaled, kFloat32), offset_.Get())};
  }

 private:
  nn::Linear& first_;
  nn::Linear& up_ =
      Make<nn::Linear>("up", {.in = kDim, .out = kHidden, .bias = true});
  nn::Linear& down_ = Make<nn::Linear>("down", kHidden, kDim);
  Adapted& adapted_ = Make<Adapted>("adapted");
  nn::Parameter& scale_ = MakeParameter("scale", {kDim}, {}, kFloat64);
  nn::Parameter& offset_ = MakeParameter("offset", {kDim}, {});
};

/// Computes head(middle(x)). The head's weight is tied to middle's first
/// product.
class Mixed final : public nn::Module {
 public:
  Mixed() : head_(kDim, kDim, {.bias = true}), middle_(head_.weight()) {
    RegisterModule("middle", middle_);
    RegisterModule("head", head_);
    NamedParameters();
    FillWithIntegers(*this);
  }
  Middle& middle() { return middle_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {head_.Forward(middle_.Forward(inputs[0]))};
  }

 private:
  nn::Linear head_;
  Middle middle_;
};

// Takes two steps in integers, then an inexact one of AdamW.
absl::Status TrainSome(Mixed& model, int rank, int ranks) {
  for (int step = 0; step < 3; ++step) {
    CH_RETURN_IF_ERROR(
        Backward(Sum(model.Forward(BatchOf(rank, ranks, step, kDim)))));
    if (step < 2) {
      IntegerDescent(model);
    } else {
      nn::AdamW optimizer(model.Parameters(), {.lr = 0.1});
      CH_RETURN_IF_ERROR(optimizer.Step());
    }
  }
  return absl::OkStatus();
}

// Shards the model. The last axis is tp.
absl::Status Shard(World& world, std::vector<MeshAxis> axes, Mixed& model,
                   bool sync_from_first_rank = false) {
  CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                      InitDeviceMesh(world, std::move(axes)));
  CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
  std::vector<std::string> data_axes(mesh.axis_names().begin(),
                                     mesh.axis_names().end());
  data_axes.pop_back();
  CH_ASSIGN_OR_RETURN(const DeviceMesh data, mesh.Slice(data_axes));
  CH_RETURN_IF_ERROR(tp::ParallelizeModule(
      model, tp,
      {{"middle.up", tp::ColwiseParallel()},
       {"middle.down", tp::RowwiseParallel({.use_local_output = true})}}));
  FullyShardOptions options;
  options.reduction.divide_factor = 1;
  options.ignored_params = {&model.middle().offset()};
  options.sync_from_first_rank = sync_from_first_rank;
  CH_RETURN_IF_ERROR(FullyShard(model.middle(), data, options));
  return FullyShard(model, data, options);
}

struct Outcome {
  std::string plan;
  Weights weights;
};

Outcome Sharded(int fsdp, int tp, uint64_t adversarial_seed) {
  Outcome outcome;
  RunRanks(
      fsdp * tp,
      [&](World& world) -> absl::Status {
        Mixed model;
        CH_RETURN_IF_ERROR(Shard(world, {{"fsdp", fsdp}, {"tp", tp}}, model));
        CH_RETURN_IF_ERROR(TrainSome(model, world.rank() / tp, fsdp));
        Weights weights = FullWeights(model);
        if (world.rank() == 0) {
          outcome = {DescribePlan(model), std::move(weights)};
        }
        return world.context().Synchronize();
      },
      {.test = {.adversarial_seed = adversarial_seed}});
  return outcome;
}

TEST(FsdpGroupingTest, FormsValidGroupsAndNamesReasons) {
  CH_SKIP_ON(TestEngine::kMpi, "reads what other ranks wrote to its variables");
  EXPECT_EQ(
      Sharded(2, 2, 0).plan,
      "root: f32 shards, gathered as f32, gradients reduced as f32, over 2 "
      "ranks; ZeRO-2, gathered from forward to the end of backward\n"
      "  middle.first.weight [3, 3] dim 0: 0:2 2:3, tied with head.weight\n"
      "  head.bias [3] dim 0: 0:2 2:3\n"
      "  (middle.offset: ignored)\n"
      "middle (f64): f64 shards, gathered as f64, gradients reduced as f64, "
      "over 2 ranks; ZeRO-3\n"
      "  middle.scale [3] dim 0: 0:2 2:3\n"
      "middle (f32): f32 shards, gathered as f32, gradients reduced as f32, "
      "over 2 ranks; ZeRO-3; separate from middle (f64): dtype\n"
      "  middle.up.weight [2, 3] dim 0: 0:1 1:2\n"
      "  middle.up.bias [2] dim 0: 0:1 1:2\n"
      "  middle.down.weight [3, 2] dim 0: 0:2 2:3\n"
      "middle (f32, frozen): f32 shards, gathered as f32, frozen, over 2 "
      "ranks; ZeRO-3; separate from middle (f64): dtype, frozen\n"
      "  middle.adapted.base.weight [3, 3] dim 0: 0:2 2:3\n"
      "middle (bf16): bf16 shards, gathered as bf16, gradients reduced as "
      "bf16, over 2 ranks; ZeRO-3; separate from middle (f64): dtype\n"
      "  middle.adapted.adapter.a [2, 3] dim 0: 0:1 1:2\n"
      "  middle.adapted.adapter.b [3, 2] dim 0: 0:2 2:3\n"
      "  (middle.first.weight: tied, in the group of the lowest common "
      "ancestor)\n"
      "  (middle.offset: ignored)\n");
}

TEST(FsdpGroupingTest, TrainsAsOneRankDoes) {
  CH_SKIP_ON(TestEngine::kMpi, "reads what other ranks wrote to its variables");
  Mixed dense;
  CH_CHECK_OK(TrainSome(dense, 0, 1));
  const Weights expected = FullWeights(dense);
  EXPECT_EQ(Sharded(1, 1, 0).weights, expected);
  for (const uint64_t seed : {0, 1, 2}) {
    EXPECT_EQ(Sharded(2, 2, seed).weights, expected) << "seed " << seed;
    EXPECT_EQ(Sharded(3, 1, seed).weights, expected) << "seed " << seed;
  }
}

// Every parameter starts with the values of the first rank of its mesh, which
// has the tensor-parallel shard.
TEST(FsdpGroupingTest, TakesTheFirstRanksValues) {
  Mixed dense;
  CH_CHECK_OK(TrainSome(dense, 0, 1));
  const Weights expected = FullWeights(dense);
  RunRanks(8, [&](World& world) -> absl::Status {
    Mixed model;
    const bool first = world.rank() < 2;
    for (nn::Parameter* p : model.Parameters()) {
      if (!first && p != &model.middle().offset()) {
        p->set_data(ZerosLike(p->data()));
      }
    }
    CH_RETURN_IF_ERROR(Shard(world, {{"replicate", 2}, {"fsdp", 2}, {"tp", 2}},
                             model, /*sync_from_first_rank=*/true));
    CH_RETURN_IF_ERROR(TrainSome(model, world.rank() / 2, 4));
    CH_EXPECT_EQ(FullWeights(model), expected);
    return world.context().Synchronize();
  });
}

TEST(FsdpGroupingTest, IsSummonedWholeAndTrainsOn) {
  const auto negate = [](const Tensor& t) {
    NoGrad no_grad;
    MulInPlace(t, -1);
  };
  Mixed dense;
  const Weights before = FullWeights(dense);
  for (nn::Parameter* p : dense.Parameters()) negate(p->data());
  CH_CHECK_OK(TrainSome(dense, 0, 1));
  const Weights expected = FullWeights(dense);
  for (const std::vector<MeshAxis>& axes : std::vector<std::vector<MeshAxis>>{
           {{"fsdp", 2}, {"tp", 2}},
           {{"replicate", 2}, {"fsdp", 2}, {"tp", 1}},
           {{"replicate", 2}, {"fsdp", 2}, {"tp", 2}}}) {
    for (const uint64_t seed : {0, 1, 2}) {
      RunRanks(MeshAxes(axes).ranks(),
               [&](World& world) -> absl::Status {
                 Mixed model;
                 CH_RETURN_IF_ERROR(Shard(world, axes, model));
                 CH_ASSIGN_OR_RETURN(auto scope,
                                     SummonFullParameters::Begin(model));
                 for (size_t i = 0; i < before.size(); ++i) {
                   const Tensor& full = scope->entries()[i].full;
                   CH_EXPECT_EQ(full.ToVector<float>(), before[i])
                       << scope->entries()[i].name;
                   negate(full);
                 }
                 CH_RETURN_IF_ERROR(scope->End());
                 const int tp = static_cast<int>(axes.back().size);
                 CH_RETURN_IF_ERROR(
                     TrainSome(model, world.rank() / tp, world.size() / tp));
                 CH_EXPECT_EQ(FullWeights(model), expected);
                 return world.context().Synchronize();
               },
               {.test = {.adversarial_seed = seed}});
    }
  }
}

// A chain of adapted products.
class Chain final : public nn::Module {
 public:
  explicit Chain(bool frozen) {
    for (int i = 0; i < 3; ++i) {
      blocks_.push_back(std::make_unique<Adapted>(frozen));
      RegisterModule(std::to_string(i), *blocks_.back());
    }
    NamedParameters();
    FillWithIntegers(*this);
  }
  std::vector<std::unique_ptr<Adapted>>& blocks() { return blocks_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    Tensor x = inputs[0];
    for (auto& block : blocks_) x = block->Forward(x);
    return {x};
  }

 private:
  std::vector<std::unique_ptr<Adapted>> blocks_;
};

// One call for a block with two dtypes takes the memory of a call per dtype. A
// frozen group is freed when the gradients of its block's inputs are complete,
// so it overlaps with the whole previous block.
TEST(FsdpGroupingTest, HoldsNoMoreThanGroupsMadeByHand) {
  CH_SKIP_ON(TestEngine::kMpi, "reads what other ranks wrote to its variables");
  const auto peaks = [](bool frozen, bool by_hand) {
    MemoryStats stats;
    OnMesh({{"fsdp", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
      World& world = mesh.world();
      Chain chain(frozen);
      FullyShardOptions options;
      options.prefetch.forward = options.prefetch.backward = 0;
      for (auto& block : chain.blocks()) {
        if (by_hand) {
          CH_RETURN_IF_ERROR(FullyShard(block->adapter(), mesh, options));
        }
        CH_RETURN_IF_ERROR(FullyShard(*block, mesh, options));
      }
      CH_RETURN_IF_ERROR(FullyShard(chain, mesh, options));
      // Sharding replaces whole parameters group by group.
      world.context().allocator().ResetPeaks();
      const Tensor x = SmallIntegers({4, kDim}, world.rank());
      CH_RETURN_IF_ERROR(Backward(Sum(chain.Forward(x))));
      if (world.rank() == 0) stats = world.context().allocator().stats();
      return world.context().Synchronize();
    });
    return stats;
  };
  // Parameters are aligned to 16 elements.
  constexpr int64_t kBase = 16 * 4;
  constexpr int64_t kAdapter = 2 * 16 * 2;
  for (const bool frozen : {false, true}) {
    const MemoryStats whole = peaks(frozen, false);
    const MemoryStats by_hand = peaks(frozen, true);
    for (const MemoryClass memory_class :
         {MemoryClass::kParameter, MemoryClass::kGradient,
          MemoryClass::kCommunication}) {
      const auto index = static_cast<size_t>(memory_class);
      EXPECT_EQ(whole.peak[index], by_hand.peak[index]) << Name(memory_class);
    }
    const auto gathered = static_cast<size_t>(MemoryClass::kGatheredParameter);
    EXPECT_EQ(by_hand.peak[gathered], kBase + kAdapter);
    EXPECT_EQ(whole.peak[gathered], kBase + kAdapter + (frozen ? kBase : 0));
  }
}

}  // namespace
}  // namespace crosshatch::fsdp
