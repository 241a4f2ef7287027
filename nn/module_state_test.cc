// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/module_state.h"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/creation.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/layers/embedding.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A table, a Linear, and a head tied to the table.
class Tied final : public Module {
 public:
  Tied() { NamedParameters(); }
  Linear& up() { return up_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {head_.Forward(up_.Forward(table_.Forward(inputs[0])))};
  }

 private:
  Embedding& table_ = Make<Embedding>("table", 7, 5);
  Linear& up_ = Make<Linear>("up", {.in = 5, .out = 5, .bias = true});
  Linear& head_ = Make<Linear>("head", table_.weight());
};

const std::vector<std::string> kNames = {"table.weight", "up.bias",
                                         "up.weight"};

std::string MessageOf(const absl::Status& status) {
  return std::string(status.message());
}

TEST(ModuleStateTest, IsTheParametersByNameOnAnyMesh) {
  for (const std::vector<int>& sizes :
       {std::vector<int>{4}, {2, 2}, {1, 2, 2}, {2, 1, 2, 1}}) {
    OnMesh(sizes, [](const DeviceMesh& mesh) -> absl::Status {
      Tied model;
      for (Parameter* p : model.Parameters()) {
        Layout layout = Layout::Replicated(mesh.layout(), p->data().ndim());
        for (int axis = 0; axis < mesh.ndim(); ++axis) {
          layout = layout.WithShard(axis, axis % p->data().ndim());
        }
        p->set_data(DistributeTensor(p->data(), mesh, layout));
      }
      CH_EXPECT_THAT(MessageOf(ModuleState(model).State().status()),
                     HasSubstr("table.weight has no memory yet"));
      CH_RETURN_IF_ERROR(model.Materialize({.seed = 3}));
      CH_ASSIGN_OR_RETURN(const StateDict state, ModuleState(model).State());
      CH_EXPECT_EQ(NamesOf(state), kNames);
      for (const auto& [name, parameter] : model.NamedParameters()) {
        CH_ASSIGN_OR_RETURN(const Tensor kept, state.Get<Tensor>(name));
        CH_EXPECT_TRUE(kept.SameAs(parameter->data())) << name;
      }
      CH_ASSIGN_OR_RETURN(const StateDict part,
                          ModuleState(model.up()).State());
      CH_EXPECT_THAT(NamesOf(part), ElementsAre("bias", "weight"));
      return absl::OkStatus();
    });
  }
}

TEST(ModuleStateTest, NamesAModuleThatIsGone) {
  auto model = std::make_unique<Tied>();
  ASSERT_TRUE(model->Materialize({.seed = 1}).ok());
  ModuleState state(*model);
  ModuleState of_part(model->up());
  const absl::StatusOr<StateDict> kept = state.State();
  ASSERT_TRUE(kept.ok());
  model.reset();
  for (ModuleState* each : {&state, &of_part}) {
    for (const absl::Status& status :
         {each->State().status(), each->StateToFill(kNames).status(),
          each->Restore(*kept)}) {
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_THAT(
          MessageOf(status),
          HasSubstr(each == &state ? "its module Tied was destroyed; keep"
                                   : "its module up (Linear) was destroyed"));
    }
  }
}

TEST(ModuleStateTest, FillsParametersThatHadNoMemory) {
  RunRanks(1, [](World&) -> absl::Status {
    Tied model;
    ModuleState state(model);
    CH_ASSIGN_OR_RETURN(const StateDict to_fill, state.StateToFill(kNames));
    CH_EXPECT_EQ(NamesOf(to_fill), kNames);
    double value = 1;
    for (const auto& [name, entry] : to_fill.entries()) {
      const NoGrad no_grad;
      FillInPlace(std::get<Tensor>(entry), value++);
    }
    Storage& storage = *model.up().weight()->data().storage();
    const uint32_t version = storage.version();
    CH_RETURN_IF_ERROR(state.Restore(to_fill));
    CH_EXPECT_NE(storage.version(), version);
    CH_EXPECT_EQ(model.up().bias()->data().ToVector<float>()[4], 2.0f);
    CH_EXPECT_EQ(model.up().weight()->data().ToVector<float>()[24], 3.0f);
    return absl::OkStatus();
  });
}

/// A parameter, a persistent buffer and a non-persistent one.
class Buffered final : public Module {
 public:
  Parameter& weight_ = MakeParameter("weight", {2}, init::Constant(1));
  Buffer& kept_ = MakeBuffer("kept", {2}, init::Constant(2));
  Buffer& beside_ = MakeBuffer("beside", {2}, init::Constant(3), kInt64, false);

 protected:
  TensorList ForwardImpl(TensorSpan) override { return {}; }
};

TEST(ModuleStateTest, HasPersistentBuffers) {
  RunRanks(1, [](World&) -> absl::Status {
    Buffered model;
    ModuleState state(model);
    CH_EXPECT_THAT(MessageOf(state.State().status()),
                   HasSubstr("weight has no memory yet"));
    // Without Materialize, the non-persistent buffer has its initial values.
    CH_ASSIGN_OR_RETURN(const StateDict to_fill,
                        state.StateToFill({"kept", "weight"}));
    CH_EXPECT_THAT(NamesOf(to_fill), ElementsAre("kept", "weight"));
    CH_EXPECT_THAT(model.beside_.data().ToVector<int64_t>(), ElementsAre(3, 3));
    {
      const NoGrad no_grad;
      FillInPlace(std::get<Tensor>(*to_fill.Find("kept")), 5);
    }
    CH_RETURN_IF_ERROR(state.Restore(to_fill));
    CH_EXPECT_THAT(model.kept_.data().ToVector<float>(), ElementsAre(5, 5));
    CH_EXPECT_THAT(MessageOf(state.StateToFill({"weight"}).status()),
                   HasSubstr("1 missing (kept)"));
    return absl::OkStatus();
  });
}

TEST(ModuleStateTest, DeferredValuesAreNaN) {
  RunRanks(1, [](World&) -> absl::Status {
    Tied model;
    CH_RETURN_IF_ERROR(ModuleState(model).StateToFill(kNames).status());
    CH_RETURN_IF_ERROR(model.Materialize({.seed = 3}));
    for (const Parameter* parameter : model.Parameters()) {
      for (const float value : parameter->data().ToVector<float>()) {
        CH_EXPECT_TRUE(std::isnan(value)) << parameter->name();
      }
    }
    return absl::OkStatus();
  });
}

TEST(ModuleStateTest, ListsNamesThatAreMissingOrUnexpected) {
  Tied model;
  EXPECT_EQ(
      MessageOf(
          ModuleState(model).StateToFill({"head.weight", "up.bias"}).status()),
      "the state that was kept is not that of this Tied: 2 missing "
      "(table.weight, up.weight), 1 unexpected (head.weight)");
  EXPECT_THAT(MessageOf(ModuleState(model, {.allow_unexpected = true})
                            .StateToFill({"head.weight", "up.bias"})
                            .status()),
              HasSubstr("this Tied: 2 missing (table.weight, up.weight)"));
  // A run's checkpoint, read as if it contained a model alone.
  EXPECT_THAT(MessageOf(ModuleState(model)
                            .StateToFill({"model.table.weight",
                                          "model.up.weight", "optimizer.step"})
                            .status()),
              HasSubstr("; \"model.table.weight\" was kept, of the part "
                        "\"model\" of a CombinedState: load into "
                        "CombinedState({{\"model\", &state}}, "
                        "{.allow_unexpected = true})"));
  ModuleState partial(model, {.allow_missing = true, .allow_unexpected = true});
  // The missing parameter would stay without values.
  EXPECT_THAT(MessageOf(partial.StateToFill({"up.bias"}).status()),
              HasSubstr("table.weight is not in the state that was kept and "
                        "has no memory yet"));
  ASSERT_TRUE(model.Materialize({.seed = 1}).ok());
  const std::vector<float> table =
      model.Parameters()[0]->data().ToVector<float>();
  const absl::StatusOr<StateDict> state =
      partial.StateToFill({"head.weight", "up.bias"});
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_THAT(NamesOf(*state), ElementsAre("up.bias"));
  EXPECT_TRUE(partial.Restore(*state).ok());
  EXPECT_EQ(model.Parameters()[0]->data().ToVector<float>(), table);
}

TEST(ModuleStateTest, TakesItsOwnTensorsOnly) {
  Tied model;
  ASSERT_TRUE(model.Materialize({.seed = 1}).ok());
  ModuleState state(model);
  StateDict other;
  for (const std::string& name : kNames) {
    ASSERT_TRUE(other.Add(name, Ones({5, 5})).ok());
  }
  EXPECT_THAT(MessageOf(state.Restore(other)),
              HasSubstr("\"table.weight\" of the state is not the tensor"));
  EXPECT_THAT(MessageOf(state.Restore({})),
              HasSubstr("no entry \"table.weight\""));
}

TEST(ModuleStateTest, RefusesPartialSums) {
  OnMesh({2}, [](const DeviceMesh& mesh) -> absl::Status {
    Linear linear(2, 3);
    const Layout layout = Layout::Replicated(mesh.layout(), 2);
    linear.weight()->set_data(
        Ones({3, 2}, mesh, layout.WithPartial(0, ReduceOp::kSum)));
    CH_EXPECT_THAT(MessageOf(ModuleState(linear).State().status()),
                   HasSubstr("parameter weight holds partial sums"));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace crosshatch::nn
