// SPDX-License-Identifier: Apache-2.0

/// \file
/// The errors and failed checks of FSDP, and their messages.

#include <cmath>
#include <functional>
#include <memory>
#include <string>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/odd_models_testutil.h"
#include "crosshatch/fsdp/on_ranks_testutil.h"
#include "crosshatch/fsdp/replicate.h"
#include "crosshatch/fsdp/sharded_module.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/fsdp/training_testutil.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/expect.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

using ::testing::HasSubstr;

TEST(FsdpErrorsTest, NamesEachMistake) {
  OnRanks({{"fsdp", 4}}, [](const DeviceMesh& mesh, LineSink&) -> absl::Status {
    TestModel model(1, 5, 7, 3);
    CH_EXPECT_THAT(std::string(ShardedModule::Of(model).status().message()),
                   HasSubstr("the TestModel  is not sharded; call"));
    const auto message = [&](const FullyShardOptions& options) {
      return std::string(FullyShard(model, mesh, options).message());
    };
    FullyShardOptions options;
    options.post_forward_mesh_size = 3;
    CH_EXPECT_THAT(message(options),
                   HasSubstr("post_forward_mesh_size 3 does not divide the 4 "
                             "shard ranks of mesh(fsdp=4)"));
    options.post_forward_mesh_size = 2;
    options.reshard_after_forward = false;
    CH_EXPECT_THAT(message(options), HasSubstr("needs reshard_after_forward"));
    options = {};
    options.reduction.buffers = 0;
    CH_EXPECT_THAT(message(options), HasSubstr("reduction.buffers 0 must be"));
    for (const double factor : {0.0, -2.0, std::nan("")}) {
      options = {};
      options.reduction.divide_factor = factor;
      CH_EXPECT_THAT(message(options), HasSubstr("reduction.divide_factor"));
    }
    options = {};
    options.prefetch.bytes = -1;
    CH_EXPECT_THAT(message(options), HasSubstr("prefetch.bytes -1 must not"));
    CH_RETURN_IF_ERROR(FullyShard(model, mesh));
    nn::Module* const block = model.blocks()[0].get();
    CH_EXPECT_THAT(
        Configure(*block, [](Settings&) {}).message(),
        HasSubstr("the TestBlock blocks.0 is not sharded; call FullyShard"));
    const auto configure = [&](void (*change)(Settings&)) {
      return std::string(Configure(model, change).message());
    };
    CH_EXPECT_THAT(
        std::string(Configure(model,
                              [&](Settings& s) {
                                s.reshard_after_backward = false;
                                s.forward_prefetch_modules = {block};
                              })
                        .message()),
        HasSubstr("forward_prefetch_modules: the TestBlock blocks.0 is not"));
    CH_EXPECT_THAT(configure([](Settings& s) { s.prefetch.backward = -1; }),
                   HasSubstr("prefetch.backward -1 must not be negative"));
    CH_EXPECT_THAT(
        configure([](Settings& s) { s.reduction.divide_factor = 0; }),
        HasSubstr("reduction.divide_factor 0 must be positive"));
    for (const auto change :
         {+[](Settings& s) { s.is_last_backward = false; },
          +[](Settings& s) { s.manual_finalization = true; },
          +[](Settings& s) { s.reduction.buffers = 2; },
          +[](Settings& s) { s.prefetch.forward = 2; }}) {
      TestModel blocks(1, 5, 7, 3);
      blocks.FillWithIntegers();
      CH_RETURN_IF_ERROR(ShardAll(blocks, mesh, {}));
      blocks.Forward(BatchOf(0, 1, 0));
      CH_EXPECT_THAT(
          std::string(Configure(*blocks.blocks()[0], change).message()),
          HasSubstr("applies to the whole tree: change it on TestModel, not on "
                    "blocks.0"));
    }
    // None of the failed calls has changed anything.
    CH_RETURN_IF_ERROR(Configure(model, [](Settings& s) {
      CH_EXPECT_TRUE(s.reshard_after_backward);
      CH_EXPECT_FALSE(s.forward_prefetch_modules.has_value());
      CH_EXPECT_EQ(s.prefetch.backward, 1);
      CH_EXPECT_FALSE(s.reduction.divide_factor.has_value());
    }));

    class Scalar final : public nn::Module {
     public:
      Scalar() {
        RegisterParameter("scale", std::make_shared<nn::Parameter>(
                                       Shape{}, kFloat32, nn::Initializer{}));
      }
      const char* type_name() const override { return "Scalar"; }

     protected:
      TensorList ForwardImpl(TensorSpan) override { return {}; }
    } scalar;
    CH_EXPECT_THAT(std::string(FullyShard(scalar, mesh).message()),
                   HasSubstr("parameter scale is a scalar"));
    return absl::OkStatus();
  });
}

TEST(FsdpErrorsTest, TiesMadeTooLateAreErrors) {
  OnRanks({{"fsdp", 2}}, [](const DeviceMesh& mesh, LineSink&) -> absl::Status {
    class Outer final : public nn::Module {
     public:
      explicit Outer(nn::Linear& a, nn::Linear& b) {
        RegisterModule("a", a);
        RegisterModule("b", b);
      }
      const char* type_name() const override { return "Outer"; }

     protected:
      TensorList ForwardImpl(TensorSpan) override { return {}; }
    };
    nn::Linear a(5, 5);
    a.weight()->set_data(SmallIntegers({5, 5}, 1));
    nn::Linear b(a.weight());
    CH_RETURN_IF_ERROR(FullyShard(a, mesh));
    Outer outer(a, b);
    CH_EXPECT_THAT(std::string(FullyShard(outer, mesh).message()),
                   HasSubstr("parameter weight is tied with b.weight, but was "
                             "sharded with the group root before"));
    return absl::OkStatus();
  });
}

TEST(FsdpErrorsDeathTest, NeverComputesWithOldValues) {
  EXPECT_DEATH(OnRanks({{"fsdp", 1}},
                       [](const DeviceMesh& mesh, LineSink&) -> absl::Status {
                         TestModel model(1, 5, 7, 3);
                         model.FillWithIntegers();
                         CH_RETURN_IF_ERROR(FullyShard(model, mesh));
                         CH_ASSIGN_OR_RETURN(auto root,
                                             ShardedModule::Of(model));
                         CH_RETURN_IF_ERROR(Configure(model, [&](Settings& s) {
                           s.reshard_after_backward = false;
                         }));
                         for (int i = 0; i < 2; ++i) {
                           CH_RETURN_IF_ERROR(
                               Backward(Sum(model.Forward(BatchOf(0, 1, i)))));
                           IntegerDescent(model);
                         }
                         return absl::OkStatus();
                       }),
               "is unsharded and its shards were changed since");
}

TEST(FsdpErrorsDeathTest, NamesAForwardThatAResetCutsShort) {
  EXPECT_DEATH(
      OnRanks({{"fsdp", 1}},
              [](const DeviceMesh& mesh, LineSink&) -> absl::Status {
                TestModel model(1, 5, 7, 3);
                model.FillWithIntegers();
                CH_RETURN_IF_ERROR(FullyShard(model, mesh));
                CH_ASSIGN_OR_RETURN(auto root, ShardedModule::Of(model));
                root.Run({BatchOf(0, 1, 0)}, [&](TensorSpan inputs) {
                  root.ResetIteration();
                  return TensorList(inputs.begin(), inputs.end());
                });
                return absl::OkStatus();
              }),
      "a forward of TestModel ended .* call ResetIteration outside of forward");
}

TEST(FsdpErrorsDeathTest, NamesDataOfAnotherLayout) {
  const auto replace_by = [](const std::function<Tensor(const Tensor&)>& make) {
    OnRanks({{"fsdp", 1}},
            [&](const DeviceMesh& mesh, LineSink&) -> absl::Status {
              TestModel model(1, 5, 7, 3);
              model.FillWithIntegers();
              CH_RETURN_IF_ERROR(FullyShard(model, mesh));
              nn::Parameter& p = *model.Parameters()[1];
              p.set_data(make(p.data()));
              model.Forward(BatchOf(0, 1, 0));
              return absl::OkStatus();
            });
  };
  EXPECT_DEATH(replace_by([](const Tensor& data) {
                 return SmallIntegers(data.sizes(), 1);
               }),
               "blocks.0.up.bias was replaced by .*, which is not sharded");
  EXPECT_DEATH(replace_by([](const Tensor& data) {
                 return DistributeTensor(
                     SmallIntegers(data.sizes(), 1), MeshOf(data),
                     Layout::Replicated(MeshOf(data).layout(), 1));
               }),
               "blocks.0.up.bias was replaced by .*, which is not sharded");
}

TEST(FsdpErrorsDeathTest, NamesParametersWithoutMemory) {
  EXPECT_DEATH(OnRanks({{"fsdp", 1}},
                       [](const DeviceMesh& mesh, LineSink&) -> absl::Status {
                         TestModel model(1, 5, 7, 3);
                         CH_RETURN_IF_ERROR(ShardAll(model, mesh, {}));
                         model.blocks()[0]->Forward(BatchOf(0, 1, 0));
                         return absl::OkStatus();
                       }),
               "blocks.0.up.weight, blocks.0.up.bias, blocks.0.down.weight, "
               "blocks.0.down.bias have no memory yet; call "
               "Module::Materialize");
}

TEST(FsdpErrorsDeathTest, NamesTiedParametersWithoutAGroup) {
  EXPECT_DEATH(OnRanks({{"fsdp", 1}},
                       [](const DeviceMesh& mesh, LineSink&) -> absl::Status {
                         Tied model;
                         CH_RETURN_IF_ERROR(FullyShard(model.first, mesh));
                         CH_RETURN_IF_ERROR(FullyShard(model.middle, mesh));
                         CH_RETURN_IF_ERROR(FullyShard(model.last, mesh));
                         model.Forward(BatchOf(0, 1, 0));
                         return absl::OkStatus();
                       }),
               "parameter first.weight is tied between modules that are "
               "sharded separately");
}

// A module to which parameters and children are added at run time.
class Growing final : public nn::Module {
 public:
  Growing() : linear_(5, 5) { RegisterModule("linear", linear_); }
  const char* type_name() const override { return "Growing"; }

  void AddParameter(const std::string& name) {
    const auto parameter =
        std::make_shared<nn::Parameter>(Shape{5}, kFloat32, nn::Initializer{});
    parameter->set_data(SmallIntegers({5}, 1));
    RegisterParameter(name, parameter);
  }
  void AddChild() {
    child_ = std::make_unique<nn::Linear>(5, 5);
    child_->weight()->set_data(SmallIntegers({5, 5}, 2));
    RegisterModule("child", *child_);
  }
  nn::Linear& child() { return *child_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    Tensor x = linear_.Forward(inputs[0]);
    for (const auto& [name, parameter] : own_parameters()) {
      x = Add(x, parameter->Get());
    }
    return {child_ == nullptr ? x : child_->Forward(x)};
  }

 private:
  nn::Linear linear_;
  std::unique_ptr<nn::Linear> child_;
};

// Runs two steps, with `change` before the first or between them.
void TrainGrowing(
    bool replicated, int when,
    const std::function<absl::Status(Growing&, const DeviceMesh&)>& change) {
  OnRanks(
      {{"fsdp", 2}}, [&](const DeviceMesh& mesh, LineSink&) -> absl::Status {
        Growing model;
        for (nn::Parameter* p : model.Parameters()) {
          p->set_data(SmallIntegers({5, 5}, 1));
        }
        CH_RETURN_IF_ERROR(replicated ? Replicate(model, mesh)
                                      : FullyShard(model, mesh));
        for (int step = 0; step < 2; ++step) {
          if (step == when) CH_RETURN_IF_ERROR(change(model, mesh));
          CH_RETURN_IF_ERROR(Backward(Sum(model.Forward(BatchOf(0, 1, step)))));
          IntegerDescent(model);
        }
        return absl::OkStatus();
      });
}

TEST(FsdpErrorsDeathTest, NamesParametersRegisteredTooLate) {
  for (const bool replicated : {false, true}) {
    for (const int when : {0, 1}) {
      EXPECT_DEATH(TrainGrowing(replicated, when,
                                [](Growing& model, const DeviceMesh&) {
                                  model.AddParameter("late");
                                  return absl::OkStatus();
                                }),
                   "parameter late was registered after FullyShard");
      EXPECT_DEATH(TrainGrowing(replicated, when,
                                [](Growing& model, const DeviceMesh&) {
                                  model.AddChild();
                                  return absl::OkStatus();
                                }),
                   "parameter child.weight was registered after FullyShard");
    }
  }
}

TEST(FsdpErrorsTest, AcceptsShardedModulesRegisteredLate) {
  TrainGrowing(/*replicated=*/false, 0,
               [](Growing& model, const DeviceMesh& mesh) {
                 model.AddChild();
                 return FullyShard(model.child(), mesh);
               });
}

}  // namespace
}  // namespace crosshatch::fsdp
