// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/replicate.h"

#include <string>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/sharded_module.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRanks = 3;

Tensor RowsOf(int rank) { return SmallIntegers({4, 5}, rank); }

std::vector<std::vector<float>> DenseGradients() {
  TestModel model(3, 5, 7, 3);
  model.FillWithIntegers();
  for (nn::Parameter* p : model.Parameters()) {
    Tensor(p->data()).set_requires_grad(true);
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    CH_EXPECT_OK(Backward(Sum(model.Forward(RowsOf(rank)))));
  }
  std::vector<std::vector<float>> gradients;
  for (nn::Parameter* p : model.Parameters()) {
    gradients.push_back(p->grad().ToVector<float>());
  }
  return gradients;
}

// Returns rank 0's gradients after `shard` on each rank.
template <typename ShardFn>
std::vector<std::vector<float>> GradientsAfter(ShardFn shard,
                                               LineSink* sink = nullptr,
                                               uint64_t adversarial_seed = 0) {
  std::vector<std::vector<float>> gradients;
  OnMesh(
      {{"dp", kRanks}},
      [&](const DeviceMesh& mesh) -> absl::Status {
        World& world = mesh.world();
        TestModel model(3, 5, 7, 3);
        model.FillWithIntegers();
        FullyShardOptions options;
        options.reduction.divide_factor = 1;
        CH_RETURN_IF_ERROR(shard(model, mesh, options));
        CH_RETURN_IF_ERROR(Backward(Sum(model.Forward(RowsOf(world.rank())))));
        NoGrad no_grad;
        for (nn::Parameter* p : model.Parameters()) {
          const std::vector<float> full =
              FullTensor(p->grad()).ToVector<float>();
          if (world.rank() == 0) gradients.push_back(full);
        }
        return absl::OkStatus();
      },
      {.sinks = {sink, nullptr, nullptr},
       .test = {.adversarial_seed = adversarial_seed}});
  return gradients;
}

TEST(ReplicateTest, SumsGradientsAndSendsNoParameters) {
  LineSink sink(EventKind::kFsdp);
  const auto whole = [](TestModel& model, const DeviceMesh& mesh,
                        const FullyShardOptions& options) -> absl::Status {
    CH_RETURN_IF_ERROR(Replicate(model, mesh, options));
    CH_EXPECT_THAT(DescribePlan(model), HasSubstr("DDP"));
    // Each rank has whole parameters.
    for (nn::Parameter* p : model.Parameters()) {
      CH_EXPECT_EQ(LocalTensor(p->data()).sizes(), p->data().sizes());
    }
    return absl::OkStatus();
  };
  EXPECT_EQ(GradientsAfter(whole, &sink), DenseGradients());
  EXPECT_THAT(sink.Take(), Contains("all_reduce root"));
  EXPECT_EQ(GradientsAfter(whole, nullptr, 5), DenseGradients());
}

// A replicated module that is listed for prefetching forms its own tree and has
// not run yet.
TEST(ReplicateTest, MayBeNamedForPrefetching) {
  const auto nested = [](TestModel& model, const DeviceMesh& mesh,
                         const FullyShardOptions& options) -> absl::Status {
    CH_RETURN_IF_ERROR(Replicate(*model.blocks()[1], mesh, options));
    CH_RETURN_IF_ERROR(FullyShard(model, mesh, options));
    return Configure(model, [&](Settings& s) {
      s.forward_prefetch_modules = {model.blocks()[1].get()};
    });
  };
  EXPECT_EQ(GradientsAfter(nested), DenseGradients());
}

TEST(ReplicateTest, FullyShardAboveIgnoresIt) {
  LineSink sink(EventKind::kFsdp);
  const auto nested = [](TestModel& model, const DeviceMesh& mesh,
                         const FullyShardOptions& options) -> absl::Status {
    TestBlock& replicated = *model.blocks()[1];
    nn::Module& down = *replicated.children()[1].second;
    CH_RETURN_IF_ERROR(FullyShard(down, mesh, options));
    CH_RETURN_IF_ERROR(Replicate(replicated, mesh, options));
    CH_RETURN_IF_ERROR(FullyShard(*model.blocks()[0], mesh, options));
    CH_RETURN_IF_ERROR(FullyShard(model, mesh, options));
    // The root's groups have the last block and the head.
    CH_EXPECT_THAT(DescribePlan(model), HasSubstr("blocks.2.up.weight"));
    CH_EXPECT_THAT(DescribePlan(model), Not(HasSubstr("blocks.1")));
    CH_EXPECT_THAT(DescribePlan(replicated), HasSubstr("blocks.1.up.weight"));
    CH_EXPECT_THAT(DescribePlan(replicated), Not(HasSubstr("blocks.1.down")));
    CH_EXPECT_THAT(DescribePlan(down), HasSubstr("blocks.1.down.weight"));
    return absl::OkStatus();
  };
  CH_EXPECT_EQ(GradientsAfter(nested, &sink), DenseGradients());
  const std::vector<std::string> log = sink.Take();
  CH_EXPECT_THAT(log, Contains("all_reduce blocks.1.up"));
  CH_EXPECT_THAT(log, Not(Contains("all_reduce blocks.1.down")));
  CH_EXPECT_EQ(GradientsAfter(nested, nullptr, 5), DenseGradients());
}

// Computes head(b(a(x))), where the head has the weight of a.
class Tying final : public nn::Module {
 public:
  class Pair final : public nn::Module {
   public:
    Pair() : a(5, 5), b(5, 5) {
      RegisterModule("a", a);
      RegisterModule("b", b);
    }
    const char* type_name() const override { return "Pair"; }
    nn::Linear a, b;

   protected:
    TensorList ForwardImpl(TensorSpan inputs) override {
      return {b.Forward(a.Forward(inputs[0]))};
    }
  };

  Tying() : head_(pair.a.weight()) {
    RegisterModule("pair", pair);
    RegisterModule("head", head_);
    int64_t salt = 0;
    for (nn::Parameter* p : Parameters()) {
      p->set_data(SmallIntegers({5, 5}, ++salt));
    }
  }
  const char* type_name() const override { return "Tying"; }
  Pair pair;

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {head_.Forward(pair.Forward(inputs[0]))};
  }

 private:
  nn::Linear head_;
};

TEST(ReplicateTest, LeavesTiedParametersToTheSharderAbove) {
  Tying dense;
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_TRUE(Backward(Sum(dense.Forward(RowsOf(rank)))).ok());
  }
  // Read on this thread, because streams of other threads do not wait for its
  // stream.
  std::vector<std::vector<float>> expected;
  for (size_t i = 0; i < 2; ++i) {
    expected.push_back(dense.Parameters()[i]->grad().ToVector<float>());
  }
  OnMesh({{"dp", kRanks}}, [&](const DeviceMesh& mesh) -> absl::Status {
    World& world = mesh.world();
    Tying model;
    FullyShardOptions options;
    options.reduction.divide_factor = 1;
    CH_RETURN_IF_ERROR(Replicate(model.pair, mesh, options));
    CH_RETURN_IF_ERROR(FullyShard(model, mesh, options));
    CH_EXPECT_THAT(DescribePlan(model.pair),
                   HasSubstr("pair.b.weight [5, 5] dim 0"));
    CH_EXPECT_THAT(DescribePlan(model), HasSubstr("tied with head.weight"));
    CH_EXPECT_THAT(DescribePlan(model), Not(HasSubstr("pair.b")));
    CH_RETURN_IF_ERROR(Backward(Sum(model.Forward(RowsOf(world.rank())))));
    NoGrad no_grad;
    for (size_t i = 0; i < 2; ++i) {
      CH_EXPECT_EQ(FullTensor(model.Parameters()[i]->grad()).ToVector<float>(),
                   expected[i]);
    }
    return absl::OkStatus();
  });
}

TEST(ReplicateTest, RefusesInvalidArguments) {
  OnMesh({{"a", 1}, {"dp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh dp, mesh.Slice("dp"));
    TestModel model(1, 5, 7, 3);
    const auto message = [](const absl::Status& status) {
      return std::string(status.message());
    };
    CH_EXPECT_THAT(message(Replicate(model, mesh)),
                   HasSubstr("Replicate takes a mesh of one axis"));
    CH_EXPECT_THAT(
        message(Replicate(model, dp, {.reshard_after_forward = true})),
        HasSubstr("Replicate shards nothing"));
    TestModel distributed(1, 4, 4, 4);
    nn::Parameter& first = *distributed.Parameters().front();
    CH_ASSIGN_OR_RETURN(const DeviceMesh a, mesh.Slice("a"));
    first.set_data(
        DistributeTensor(first.data(), a, Layout::Replicated(a.layout(), 2)));
    CH_EXPECT_THAT(message(Replicate(distributed, dp)),
                   HasSubstr("blocks.0.up.weight is a DTensor, but Replicate "
                             "takes plain parameters"));
    CH_RETURN_IF_ERROR(Replicate(model, dp));
    CH_EXPECT_THAT(message(Replicate(model, dp)),
                   HasSubstr("this TestModel is replicated already"));
    CH_EXPECT_THAT(message(FullyShard(model, dp)),
                   HasSubstr("this TestModel is replicated already"));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace crosshatch::fsdp
