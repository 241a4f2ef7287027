// SPDX-License-Identifier: Apache-2.0

/// \file
/// Modules that are destroyed before graphs, handles and scopes that refer to
/// them. The error names the destroyed module, and no freed memory is read.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/on_ranks_testutil.h"
#include "crosshatch/fsdp/replicate.h"
#include "crosshatch/fsdp/sharded_module.h"
#include "crosshatch/fsdp/summon.h"
#include "crosshatch/nn/activation_checkpoint.h"
#include "crosshatch/nn/layers/containers.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Runs on each rank; returns the status of Backward.
using Body = std::function<absl::Status(const DeviceMesh&)>;

void ExpectEveryRankReports(const std::string& module, const Body& body,
                            const Axes& axes = {{"fsdp", 2}}) {
  for (const uint64_t seed : {0, 1, 2, 3}) {
    const absl::Status status = StatusOfRanks(
        2,
        [&](World& world) -> absl::Status {
          CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                              InitDeviceMesh(world, axes));
          const absl::Status backward = body(mesh);
          CH_EXPECT_THAT(std::string(backward.message()),
                         AllOf(HasSubstr("a backward through " + module),
                               HasSubstr("module is gone; keep the model")));
          return backward;
        },
        {.test = {.adversarial_seed = seed}});
    EXPECT_FALSE(status.ok());
  }
}

// How the destroyed model was sharded.
struct Way {
  std::string name;
  std::function<void(FullyShardOptions&)> set = [](FullyShardOptions&) {};
  bool keep_unsharded = false;
  bool checkpointed = false;
};

class GoneModelTest : public ::testing::TestWithParam<Way> {};

void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

TEST_P(GoneModelTest, StopsTheBackwardByName) {
  const Way& way = GetParam();
  ExpectEveryRankReports(
      "TestModel", [&](const DeviceMesh& mesh) -> absl::Status {
        Tensor loss;
        {
          TestModel model(3, 5, 7, 3);
          model.FillWithIntegers();
          FullyShardOptions options = Summing();
          way.set(options);
          CH_RETURN_IF_ERROR(ShardAll(model, mesh, options));
          CH_RETURN_IF_ERROR(Configure(model, [&](Settings& s) {
            s.keep_unsharded = way.keep_unsharded;
          }));
          if (way.checkpointed) {
            CH_RETURN_IF_ERROR(nn::CheckpointActivations(*model.blocks()[1]));
          }
          loss = Sum(model.Forward(BatchOf(0, 1, 1)));
        }
        // The memory of the destroyed model is used again.
        TestModel other(3, 5, 7, 3);
        other.FillWithIntegers();
        Sum(other.Forward(BatchOf(0, 1, 2)));
        return Backward(loss);
      });
}

INSTANTIATE_TEST_SUITE_P(
    All, GoneModelTest,
    ::testing::Values(
        Way{"Plain"},
        Way{"Kept",
            [](FullyShardOptions& o) { o.reshard_after_forward = false; }},
        Way{"PostForward",
            [](FullyShardOptions& o) { o.post_forward_mesh_size = 1; }},
        Way{"Prefetched", [](FullyShardOptions& o) { o.prefetch.forward = 3; }},
        Way{"BFloat16",
            [](FullyShardOptions& o) {
              o.mixed_precision.param_dtype = kBFloat16;
            }},
        Way{"Offloaded", [](FullyShardOptions& o) { o.cpu_offload = true; }},
        Way{.name = "KeepUnsharded", .keep_unsharded = true},
        Way{.name = "Checkpointed", .checkpointed = true}),
    ::testing::PrintToStringParamName());

TEST(LifetimeTest, ReportsADestroyedReplicatedModel) {
  ExpectEveryRankReports("TestModel",
                         [](const DeviceMesh& mesh) -> absl::Status {
                           Tensor loss;
                           {
                             TestModel model(1, 5, 7, 3);
                             model.FillWithIntegers();
                             CH_RETURN_IF_ERROR(Replicate(model, mesh));
                             loss = Sum(model.Forward(BatchOf(0, 1, 1)));
                           }
                           return Backward(loss);
                         },
                         {{"data", 2}});
}

TEST(LifetimeTest, ReportsADestroyedModuleInTheMiddle) {
  ExpectEveryRankReports(
      "TestBlock", [](const DeviceMesh& mesh) -> absl::Status {
        TestBlock first(5, 7);
        auto second = std::make_unique<TestBlock>(5, 7);
        TestBlock third(5, 7);
        Tensor x = BatchOf(0, 1, 1);
        for (TestBlock* block : {&first, second.get(), &third}) {
          for (nn::Parameter* p : block->Parameters()) {
            p->set_data(SmallIntegers(p->data().sizes(), 2));
          }
          CH_RETURN_IF_ERROR(FullyShard(*block, mesh, Summing()));
          x = block->Forward(x);
        }
        const Tensor loss = Sum(x);
        second = nullptr;
        return Backward(loss);
      });
}

// A model that does not own its blocks.
class Borrower final : public nn::Module {
 public:
  explicit Borrower(TestBlock& block) : block_(block) {
    RegisterModule("block", block);
  }
  const char* type_name() const override { return "Borrower"; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {block_.Forward(inputs[0])};
  }

 private:
  TestBlock& block_;
};

TEST(LifetimeTest, ReportsARootDestroyedBeforeItsBlocks) {
  const std::string root = "the root of the tree of block";
  ExpectEveryRankReports(root, [](const DeviceMesh& mesh) -> absl::Status {
    TestBlock block(5, 7);
    for (nn::Parameter* p : block.Parameters()) {
      p->set_data(SmallIntegers(p->data().sizes(), 2));
    }
    CH_RETURN_IF_ERROR(FullyShard(block, mesh, Summing()));
    Tensor loss;
    {
      Borrower model(block);
      CH_RETURN_IF_ERROR(FullyShard(model, mesh, Summing()));
      loss = Sum(model.Forward(BatchOf(0, 1, 1)));
    }
    return Backward(loss);
  });
}

TEST(LifetimeTest, HandlesAndScopesMayOutliveTheModel) {
  for (const uint64_t seed : {0, 1, 2, 3}) {
    OnRanks(
        {{"fsdp", 2}},
        [](const DeviceMesh& mesh, LineSink&) -> absl::Status {
          std::optional<UnshardHandle> unshard;
          std::optional<ReductionHandle> reduction;
          std::unique_ptr<SummonFullParameters> summoned;
          TestModel stays(1, 5, 7, 3);
          stays.FillWithIntegers();
          CH_RETURN_IF_ERROR(FullyShard(stays, mesh, Summing()));
          {
            TestModel model(2, 5, 7, 3);
            model.FillWithIntegers();
            CH_RETURN_IF_ERROR(ShardAll(model, mesh, Summing()));
            CH_ASSIGN_OR_RETURN(auto root, ShardedModule::Of(model));
            CH_ASSIGN_OR_RETURN(auto block,
                                ShardedModule::Of(*model.blocks()[0]));
            CH_RETURN_IF_ERROR(Configure(stays, [&](Settings& s) {
              s.forward_prefetch_modules = {model.blocks()[1].get()};
            }));
            CH_RETURN_IF_ERROR(Configure(
                model, [&](Settings& s) { s.is_last_backward = false; }));
            CH_RETURN_IF_ERROR(Backward(Sum(model.Forward(BatchOf(0, 1, 1)))));
            reduction = root.FinalizeBackward();
            root.ResetIteration();
            CH_ASSIGN_OR_RETURN(
                summoned, SummonFullParameters::Begin(*model.blocks()[1]));
            unshard = block.Unshard();
          }
          unshard->Wait();
          reduction->Wait();
          CH_RETURN_IF_ERROR(summoned->End());
          CH_RETURN_IF_ERROR(Configure(stays, [](Settings& s) {
            CH_EXPECT_TRUE(s.forward_prefetch_modules->empty());
          }));
          return Backward(Sum(stays.Forward(BatchOf(0, 1, 2))));
        },
        seed);
  }
}

// The state of a module that owns its children (Make, Add) is destroyed before
// their states.
TEST(LifetimeTest, AHandleMayOutliveARootThatOwnsItsModules) {
  for (const uint64_t seed : {0, 1, 2, 3}) {
    OnRanks(
        {{"fsdp", 2}},
        [](const DeviceMesh& mesh, LineSink&) -> absl::Status {
          std::optional<ReductionHandle> reduction;
          {
            nn::Sequential model;
            model.Add<nn::Linear>(5, 7);
            model.Add<nn::Linear>(7, 3);
            for (nn::Parameter* p : model.Parameters()) {
              p->set_data(SmallIntegers(p->data().sizes(), 2));
            }
            CH_RETURN_IF_ERROR(FullyShard(model[0], mesh, Summing()));
            CH_RETURN_IF_ERROR(FullyShard(model[1], mesh, Summing()));
            CH_RETURN_IF_ERROR(FullyShard(model, mesh, Summing()));
            CH_ASSIGN_OR_RETURN(auto root, ShardedModule::Of(model));
            CH_RETURN_IF_ERROR(Configure(
                model, [&](Settings& s) { s.is_last_backward = false; }));
            CH_RETURN_IF_ERROR(Backward(Sum(model.Forward(BatchOf(0, 1, 1)))));
            reduction = root.FinalizeBackward();
          }
          reduction->Wait();
          return absl::OkStatus();
        },
        seed);
  }
}

TEST(LifetimeDeathTest, NamesTheDestroyedModuleOfAHandle) {
  EXPECT_DEATH(OnRanks({{"fsdp", 1}},
                       [](const DeviceMesh& mesh, LineSink&) -> absl::Status {
                         std::optional<ShardedModule> handle;
                         {
                           TestModel model(1, 5, 7, 3);
                           model.FillWithIntegers();
                           CH_RETURN_IF_ERROR(FullyShard(model, mesh));
                           CH_ASSIGN_OR_RETURN(handle,
                                               ShardedModule::Of(model));
                         }
                         handle->Reshard();
                         return absl::OkStatus();
                       }),
               "ShardedModule of TestModel, whose module is gone");
}

}  // namespace
}  // namespace crosshatch::fsdp
