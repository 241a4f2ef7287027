// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/full_state.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/creation.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/module_state.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using ::testing::HasSubstr;
using Values = std::map<std::string, std::vector<double>>;

/// A model, its optimizer and a step, on a mesh or plain.
class TestRun {
 public:
  explicit TestRun(const DeviceMesh* mesh) {
    model_.NamedParameters();
    for (Parameter* p : model_.Parameters()) {
      if (mesh == nullptr) continue;
      Layout layout = Layout::Replicated(mesh->layout(), p->data().ndim());
      for (int axis = 0; axis < mesh->ndim(); ++axis) {
        layout = layout.WithShard(axis, axis % p->data().ndim());
      }
      p->set_data(DistributeTensor(p->data(), *mesh, layout));
    }
  }
  Linear& model() { return model_; }
  AdamW& optimizer() { return optimizer_; }
  CombinedState& state() { return state_; }

  /// Takes a step with gradients of 1, 2 and so on.
  absl::Status Step() {
    ++step_;
    rate_ /= 3;
    absl::StrAppend(&name_, "\"3:\n", step_);
    for (Parameter* p : model_.Parameters()) {
      const Tensor& data = p->data();
      p->set_grad(data.is_distributed()
                      ? Full(data.sizes(), static_cast<double>(step_),
                             MeshOf(data), LayoutOf(data))
                      : Full(data.sizes(), static_cast<double>(step_)));
    }
    return optimizer_.Step();
  }

 private:
  int64_t step_ = 0;
  double rate_ = 0.1;
  std::string name_;
  Linear model_{3, 5, {.bias = true}};
  AdamW optimizer_{model_.Parameters(), {.lr = 0.1}};
  ModuleState parameters_{model_};
  BoundValues values_{{{"step", &step_}, {"rate", &rate_}, {"name", &name_}}};
  CombinedState state_{{{"model", &parameters_},
                        {"optimizer", &optimizer_},
                        {"values", &values_}}};
};

/// Gathers all tensors of a run, as `holder` has them.
absl::StatusOr<StateDict> Whole(World& world, TestRun& run,
                                StateHolder holder) {
  CH_ASSIGN_OR_RETURN(const StateDict state, run.state().State());
  StateDict whole;
  CH_RETURN_IF_ERROR(VisitFullState(
      world, state, holder, [&](const std::string& name, const StateValue& v) {
        return whole.Add(name, v);
      }));
  return whole;
}

Values ValuesOf(const StateDict& whole) {
  Values values;
  for (const auto& [name, value] : whole.entries()) {
    if (const auto* tensor = std::get_if<Tensor>(&value)) {
      const std::vector<float> floats = tensor->ToVector<float>();
      values[name].assign(floats.begin(), floats.end());
    } else if (const auto* text = std::get_if<std::string>(&value)) {
      values[name].assign(text->begin(), text->end());
    } else if (const auto* number = std::get_if<double>(&value)) {
      values[name] = {*number};
    } else {
      values[name] = {static_cast<double>(std::get<int64_t>(value))};
    }
  }
  return values;
}

/// Returns the result of `steps` steps without a mesh.
absl::StatusOr<Values> Expected(int steps) {
  TestRun run(nullptr);
  CH_RETURN_IF_ERROR(run.model().Materialize({.seed = 4}));
  for (int i = 0; i < steps; ++i) CH_RETURN_IF_ERROR(run.Step());
  CH_ASSIGN_OR_RETURN(const StateDict whole, run.state().State());
  return ValuesOf(whole);
}

TEST(FullStateTest, MovesBetweenAnyTwoMeshes) {
  for (const StateHolder holder :
       {StateHolder::kFirstRank, StateHolder::kEveryRank}) {
    OnMesh({4}, [&](const DeviceMesh& mesh) -> absl::Status {
      World& world = mesh.world();
      CH_ASSIGN_OR_RETURN(const Values at_two, Expected(2));
      CH_ASSIGN_OR_RETURN(const Values at_three, Expected(3));
      CH_EXPECT_EQ(at_two.size(), 2 + 2 * 3 + 3);
      const bool holds = holder == StateHolder::kEveryRank || world.rank() == 0;
      TestRun run(&mesh);
      CH_RETURN_IF_ERROR(run.model().Materialize({.seed = 4}));
      CH_RETURN_IF_ERROR(run.Step());
      CH_RETURN_IF_ERROR(run.Step());
      CH_ASSIGN_OR_RETURN(const StateDict whole, Whole(world, run, holder));
      CH_EXPECT_EQ(ValuesOf(whole), holds ? at_two : Values());

      CH_ASSIGN_OR_RETURN(const DeviceMesh other,
                          InitDeviceMesh(world, {{"a", 2}, {"b", 2}}));
      for (const DeviceMesh* to : {&other, (const DeviceMesh*)nullptr}) {
        TestRun again(to);
        CH_RETURN_IF_ERROR(
            RestoreFullState(world, again.state(), whole, {.from = holder}));
        CH_RETURN_IF_ERROR(again.Step());
        CH_ASSIGN_OR_RETURN(const StateDict after,
                            Whole(world, again, StateHolder::kEveryRank));
        CH_EXPECT_EQ(ValuesOf(after), at_three);
      }
      return absl::OkStatus();
    });
  }
}

TEST(FullStateTest, NoRankHoldsTwoWholeTensors) {
  constexpr int64_t kBytes = 64 * 64 * 4;
  OnMesh({4}, [&](const DeviceMesh& mesh) -> absl::Status {
    World& world = mesh.world();
    StateDict state;
    const Layout rows = Layout::Replicated(mesh.layout(), 2).WithShard(0, 0);
    for (const char* name : {"a", "b", "c"}) {
      CH_RETURN_IF_ERROR(state.Add(name, Ones({64, 64}, mesh, rows)));
    }
    Allocator& allocator = world.context().allocator();
    for (const StateHolder holder :
         {StateHolder::kFirstRank, StateHolder::kEveryRank}) {
      allocator.ResetPeaks();
      const int64_t before = allocator.stats().peak_total;
      CH_RETURN_IF_ERROR(VisitFullState(
          world, state, holder, [](const std::string&, const StateValue& v) {
            return std::get<Tensor>(v).numel() == 64 * 64
                       ? absl::OkStatus()
                       : absl::InternalError("a part");
          }));
      const bool holds = holder == StateHolder::kEveryRank || world.rank() == 0;
      // A rank without a result returns a scalar instead.
      CH_EXPECT_EQ((allocator.stats().peak_total - before) / 16,
                   holds ? kBytes / 16 : 0)
          << "rank " << world.rank();
    }
    return absl::OkStatus();
  });
}

TEST(FullStateTest, EveryRankReportsAnErrorOfOne) {
  OnMesh({2}, [](const DeviceMesh& mesh) -> absl::Status {
    World& world = mesh.world();
    TestRun run(&mesh);
    CH_RETURN_IF_ERROR(run.model().Materialize({.seed = 4}));
    CH_ASSIGN_OR_RETURN(const StateDict state, run.state().State());
    int visits = 0;
    const absl::Status status =
        VisitFullState(world, state, StateHolder::kFirstRank,
                       [&](const std::string& name, const StateValue&) {
                         ++visits;
                         return absl::DataLossError("no place for " + name);
                       });
    CH_EXPECT_EQ(visits, world.rank() == 0 ? 1 : 0);
    CH_EXPECT_TRUE(absl::IsDataLoss(status));
    CH_EXPECT_THAT(std::string(status.message()),
                   HasSubstr("no place for model.bias"));

    StateDict other = state;
    if (world.rank() == 1) CH_RETURN_IF_ERROR(other.Add("more", 1.0));
    CH_EXPECT_THAT(
        std::string(VisitFullState(world, other, StateHolder::kEveryRank,
                                   [](const std::string&, const StateValue&) {
                                     return absl::OkStatus();
                                   })
                        .message()),
        HasSubstr("ranks 0 and 1 have entries of different names: \"more\" is "
                  "on rank 1 alone"));
    return absl::OkStatus();
  });
}

TEST(FullStateTest, RefusesSlicesThatHoldOtherValues) {
  OnMesh({2, 2}, [](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh slice, mesh.Slice("b"));
    const Layout rows = Layout::Replicated(slice.layout(), 1).WithShard(0, 0);
    const auto visit = [&](double value) -> absl::StatusOr<int> {
      StateDict state;
      CH_RETURN_IF_ERROR(
          state.Add("w", DistributeTensor(Full({3}, value), slice, rows)));
      int visits = 0;
      CH_RETURN_IF_ERROR(VisitFullState(
          mesh.world(), state, StateHolder::kEveryRank,
          [&](const std::string&, const StateValue& entry) {
            ++visits;
            CH_EXPECT_EQ(std::get<Tensor>(entry).ToVector<double>(),
                         std::vector<double>(3, value));
            return absl::OkStatus();
          }));
      return visits;
    };
    CH_ASSIGN_OR_RETURN(const int visits, visit(7));
    CH_EXPECT_EQ(visits, 1);
    CH_EXPECT_THAT(
        std::string(visit((*mesh.coordinate())[0]).status().message()),
        HasSubstr("the full state: \"w\" [0:2] on rank 2 holds other values "
                  "than on rank 0"));
    return absl::OkStatus();
  });
}

TEST(FullStateTest, RefusesReplicasOfAShardThatHoldOtherValues) {
  OnMesh({2, 2}, [](const DeviceMesh& mesh) -> absl::Status {
    const Layout rows = Layout::Replicated(mesh.layout(), 1).WithShard(0, 0);
    const auto visit = [&](double value) {
      StateDict state;
      CH_RETURN_IF_ERROR(
          state.Add("w", DistributeTensor(Full({3}, value), mesh, rows)));
      return VisitFullState(mesh.world(), state, StateHolder::kEveryRank,
                            [](const std::string&, const StateValue&) {
                              return absl::OkStatus();
                            });
    };
    CH_RETURN_IF_ERROR(visit(7));
    CH_EXPECT_THAT(
        std::string(visit((*mesh.coordinate())[1]).message()),
        HasSubstr("the full state: \"w\" [0:2] on rank 1 holds other values "
                  "than on rank 0"));
    // Shards have no replicas.
    CH_RETURN_IF_ERROR(visit((*mesh.coordinate())[0]));
    return absl::OkStatus();
  });
}

// One slice has two ranks, the other one.
TEST(FullStateTest, RefusesSlicesThatAreCutOtherwise) {
  OnMesh({3}, [](const DeviceMesh& all) -> absl::Status {
    World& world = all.world();
    CH_ASSIGN_OR_RETURN(DeviceMesh mesh,
                        InitDeviceMesh(world, {{"x", 2}}, {0, 1}));
    CH_ASSIGN_OR_RETURN(const DeviceMesh other,
                        InitDeviceMesh(world, {{"x", 1}}, {2}));
    if (world.rank() == 2) mesh = other;
    StateDict state;
    CH_RETURN_IF_ERROR(state.Add(
        "w", DistributeTensor(
                 Full({5}, world.rank() == 2 ? 2.0 : 1.0), mesh,
                 Layout::Replicated(mesh.layout(), 1).WithShard(0, 0))));
    CH_EXPECT_THAT(
        std::string(VisitFullState(world, state, StateHolder::kFirstRank,
                                   [](const std::string&, const StateValue&) {
                                     return absl::OkStatus();
                                   })
                        .message()),
        HasSubstr("\"w\" [0:5] on rank 2 is cut otherwise than [0:3] on rank "
                  "0"));
    return absl::OkStatus();
  });
}

TEST(FullStateTest, ConvertsDtypesIfRequested) {
  OnMesh({2}, [](const DeviceMesh& mesh) -> absl::Status {
    World& world = mesh.world();
    Linear linear(2, 3);
    linear.weight()->set_data(
        DistributeTensor(linear.weight()->data(), mesh,
                         Layout::Replicated(mesh.layout(), 2).WithShard(0, 0)));
    ModuleState target(linear);
    const auto restore = [&](const Tensor& from, bool convert) {
      StateDict saved;
      CH_RETURN_IF_ERROR(saved.Add("weight", from));
      return RestoreFullState(world, target, saved,
                              {.convert_dtypes = convert});
    };
    const Tensor halves = Full({3, 2}, 0.5, kBFloat16);
    CH_EXPECT_THAT(std::string(restore(halves, false).message()),
                   HasSubstr("\"weight\" is f32[3, 2]"));
    CH_EXPECT_THAT(std::string(restore(halves, false).message()),
                   HasSubstr("the dtypes differ"));
    CH_EXPECT_OK(restore(halves, true));
    CH_EXPECT_EQ(FullTensor(linear.weight()->data()).ToVector<float>(),
                 std::vector<float>(6, 0.5f));
    CH_EXPECT_THAT(std::string(restore(Ones({2, 3}), true).message()),
                   HasSubstr("the sizes differ"));
    CH_EXPECT_THAT(
        std::string(restore(linear.weight()->data(), true).message()),
        HasSubstr("whole tensors are expected"));
    return absl::OkStatus();
  });
}

// Rank 0 of the job is not on the mesh of the second stage.
TEST(FullStateTest, RestoresAStageFromItsFirstRank) {
  OnMesh({3}, [](const DeviceMesh& all) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                        InitDeviceMesh(all.world(), {{"fsdp", 2}}, {1, 2}));
    if (!mesh.coordinate().has_value()) return absl::OkStatus();
    CH_ASSIGN_OR_RETURN(World* const stage, all.world().Subset({1, 2}));
    Linear linear(2, 3);
    linear.weight()->set_data(
        DistributeTensor(linear.weight()->data(), mesh,
                         Layout::Replicated(mesh.layout(), 2).WithShard(0, 0)));
    ModuleState target(linear);
    StateDict saved;
    if (stage->rank() == 0) {
      CH_RETURN_IF_ERROR(saved.Add("weight", Full({3, 2}, 0.5)));
    }
    CH_RETURN_IF_ERROR(RestoreFullState(*stage, target, saved,
                                        {.from = StateHolder::kFirstRank}));
    CH_EXPECT_EQ(FullTensor(linear.weight()->data()).ToVector<float>(),
                 std::vector<float>(6, 0.5f));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace crosshatch::nn
