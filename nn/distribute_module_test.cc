// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/distribute_module.h"

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using ::testing::HasSubstr;

class Table final : public Module {
 public:
  Buffer& table_ = MakeBuffer("table", {3}, init::Constant(2));

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {Add(inputs[0], ReplicatedLike(table_.data(), inputs[0]))};
  }
};

TEST(DistributeModuleTest, ReplicatesBuffers) {
  OnMesh({2}, [](const DeviceMesh& mesh) -> absl::Status {
    Table module;
    CH_RETURN_IF_ERROR(DistributeModule(module, mesh));
    CH_RETURN_IF_ERROR(module.Materialize({}));
    CH_EXPECT_EQ(LayoutOf(module.table_.data()),
                 Layout::Replicated(mesh.layout(), 1));
    const Tensor y = module.Forward(DistributeTensor(
        Ones({3}), mesh, Layout::Replicated(mesh.layout(), 1).WithShard(0, 0)));
    CH_EXPECT_EQ(FullTensor(y).ToVector<float>(), std::vector<float>(3, 3));
    return absl::OkStatus();
  });
}

// [B, 5] to [B, 3] by 7 hidden units.
class Net final : public Module {
 public:
  explicit Net(bool filled = true) {
    if (!filled) return;
    int64_t salt = 0;
    for (Parameter* p : Parameters()) {
      Tensor values = SmallIntegers(p->data().sizes(), ++salt);
      values.set_requires_grad(true);
      p->set_data(values);
    }
  }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    const Tensor twice = square_.Forward(square_.Forward(inputs[0]));
    return {down_.Forward(Relu(up_.Forward(twice)))};
  }

 private:
  Linear& square_ = Make<Linear>("square", 5, 5);
  Linear& up_ = Make<Linear>("up", {.in = 5, .out = 7, .bias = true});
  Linear& down_ = Make<Linear>("down", 7, 3);
};

// Shards the hidden units over the mesh's one axis.
absl::Status SplitHidden(const std::string& name, Module& module,
                         const DeviceMesh& mesh) {
  if (name != "up" && name != "down") return absl::OkStatus();
  for (const auto& [own, parameter] : module.own_parameters()) {
    const Layout whole =
        Layout::Replicated(mesh.layout(), parameter->data().ndim());
    CH_RETURN_IF_ERROR(DistributeParameter(
        *parameter, mesh, whole.WithShard(0, name == "up" ? 0 : 1)));
  }
  return absl::OkStatus();
}

// Returns options with plain tensors as input and output.
DistributeModuleOptions PlainOutside() {
  return {
      .partition = SplitHidden,
      .input =
          [](TensorList& inputs, const DeviceMesh& mesh) {
            inputs[0] = Replicated(inputs[0], mesh);
          },
      .output =
          [](TensorList& outputs, const DeviceMesh& mesh) {
            outputs[0] =
                FullTensor(outputs[0], Layout::Replicated(mesh.layout(), 2));
          },
  };
}

using Values = std::vector<std::vector<float>>;
absl::StatusOr<Values> OutputAndGradients(Net& net) {
  const Tensor output = net.Forward(SmallIntegers({4, 5}, 9));
  CH_EXPECT_FALSE(output.is_distributed());
  Values values = {output.ToVector<float>()};
  CH_RETURN_IF_ERROR(Backward(Sum(output)));
  for (Parameter* p : net.Parameters()) {
    values.push_back(FullTensor(p->grad()).ToVector<float>());
  }
  return values;
}

TEST(DistributeModule, MatchesOneRank) {
  Net dense;
  const Values expected = *OutputAndGradients(dense);
  for (const int ranks : {1, 2, 3}) {
    OnMesh({{"tp", ranks}}, [&](const DeviceMesh& mesh) -> absl::Status {
      Net net;
      CH_RETURN_IF_ERROR(DistributeModule(net, mesh, PlainOutside()));
      CH_ASSIGN_OR_RETURN(const Values values, OutputAndGradients(net));
      CH_EXPECT_EQ(values, expected) << ranks;
      return absl::OkStatus();
    });
  }
}

TEST(DistributeModule, ReplicatesTheRest) {
  OnMesh({{"dp", 2}, {"tp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    // Without memory, so that a rank only ever allocates its shards.
    Net net(/*filled=*/false);
    CH_RETURN_IF_ERROR(DistributeModule(net, mesh));
    for (Parameter* p : net.Parameters()) {
      CH_EXPECT_EQ(LayoutOf(p->data()).ToString(), "[R,R]");
      CH_EXPECT_FALSE(LocalTensor(p->data()).storage()->attached());
      CH_EXPECT_TRUE(p->data().requires_grad());
    }
    CH_RETURN_IF_ERROR(net.Materialize({.seed = 7}));
    const Tensor output =
        net.Forward(Replicated(SmallIntegers({2, 5}, 1), mesh));
    CH_EXPECT_EQ(LayoutOf(output).ToString(), "[R,R]");
    return absl::OkStatus();
  });
}

TEST(DistributeModule, NamesMismatches) {
  RunRanks(3, [](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                        InitDeviceMesh(world, {{"tp", 2}}));
    Net net;
    const absl::Status first = DistributeModule(net, mesh);
    if (world.rank() == 2) {
      CH_EXPECT_THAT(std::string(first.message()),
                     HasSubstr("rank 2 is not on mesh(tp=2)"));
    } else {
      CH_EXPECT_OK(first);
    }
    CH_ASSIGN_OR_RETURN(const DeviceMesh world_mesh,
                        InitDeviceMesh(world, {{"dp", 3}}));
    if (world.rank() == 2) return absl::OkStatus();
    CH_EXPECT_THAT(std::string(DistributeModule(net, mesh).message()),
                   HasSubstr("is distributed already"));
    Net other;
    const auto message = [&](const DistributeModuleOptions& options) {
      return std::string(DistributeModule(other, mesh, options).message());
    };
    CH_EXPECT_EQ(
        message({.partition =
                     [](const std::string& name, Module&, const DeviceMesh&) {
                       return name == "up" ? absl::CancelledError("not " + name)
                                           : absl::OkStatus();
                     }}),
        "not up");
    CH_EXPECT_THAT(message({.partition =
                                [&](const std::string& name, Module& module,
                                    const DeviceMesh&) {
                                  return SplitHidden(name, module, world_mesh);
                                }}),
                   HasSubstr("up.weight is on mesh(dp=3), not on mesh(tp=2)"));
    CH_EXPECT_THAT(
        message({.partition = SplitHidden}),
        HasSubstr("parameter up.weight is distributed as [S(0)] already"));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace crosshatch::nn
