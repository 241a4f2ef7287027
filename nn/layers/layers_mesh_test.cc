// SPDX-License-Identifier: Apache-2.0

// Layers with inputs and weights in every layout that their headers allow:
// results and gradients equal those of one rank, and results have the
// documented layout. Other layouts are refused.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/distribute_module.h"
#include "crosshatch/nn/layers/containers.h"
#include "crosshatch/nn/layers/conv.h"
#include "crosshatch/nn/layers/gelu.h"
#include "crosshatch/nn/layers/norm.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/near.h"
#include "crosshatch/testing/ranks.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

// Sums of some 100 products in different orders.
constexpr double kRoundings = 200;
// Rounding to 8 bits may choose the neighbour.
constexpr double kRoundingsOfBFloat16 = 0x1p17;

std::unique_ptr<Module> MakeLayerNorm() {
  return std::make_unique<LayerNorm>(6);
}
std::unique_ptr<Module> MakeGroupNorm() {
  return std::make_unique<GroupNorm>(3, 6);
}
std::unique_ptr<Module> MakeConv1d() {
  return std::make_unique<Conv1d>(4, 6, 3, Conv1dOptions{.padding = 1});
}
std::unique_ptr<Module> MakeConv2d() {
  return std::make_unique<Conv2d>(4, 6, RowsCols{2, 2},
                                  Conv2dOptions{.windows = {.stride = {2, 2}}});
}
std::unique_ptr<Module> MakeGroupedConv() {
  return std::make_unique<Conv2d>(4, 6, RowsCols{3, 1},
                                  Conv2dOptions{.groups = 2});
}
std::unique_ptr<Module> MakeStem() {
  auto stem = std::make_unique<Sequential>();
  stem->Add<Conv1d>(4, 6, 3, Conv1dOptions{.stride = 2});
  stem->Add<GroupNorm>(3, 6);
  stem->Add<Gelu>();
  return stem;
}

struct Case {
  std::string name;
  std::function<std::unique_ptr<Module>()> make;
  Shape sizes;
  std::vector<int> mesh;
  /// One placement per mesh axis, or none for replicated.
  std::vector<Placement> input;
  std::vector<Placement> weight = {};
  std::vector<Placement> bias = {};
  /// The layout of the result.
  std::string output = "";
  /// The unit of split channels.
  int64_t unit = 1;
  DType dtype = kFloat32;
};

Layout LayoutFor(const DeviceMesh& mesh, int ndim,
                 const std::vector<Placement>& placements, int64_t unit) {
  Layout layout = Layout::Replicated(mesh.layout(), ndim);
  if (placements.empty()) return layout;
  layout = Layout::FromPlacements(mesh.layout(), ndim, placements).value();
  if (unit == 1) return layout;
  DimSharding channels = layout.sharding(1);
  channels.unit = unit;
  return layout.WithDim(1, std::move(channels));
}

Values WholeOf(const TensorList& tensors) {
  Values values;
  for (const Tensor& t : tensors) {
    values.push_back(FullTensor(t).ToVector<float>());
  }
  return values;
}

// Returns the result followed by all gradients.
absl::StatusOr<TensorList> RunOn(Module& layer, Tensor x) {
  x.set_requires_grad(true);
  const Tensor y = layer.Forward(x);
  CH_RETURN_IF_ERROR(Backward(Sum(Tanh(y))));
  TensorList results = {y, x.grad()};
  for (Parameter* p : layer.Parameters()) results.push_back(p->grad());
  return results;
}

absl::StatusOr<TensorList> RunOn(const Case& c, const DeviceMesh& mesh) {
  const std::unique_ptr<Module> layer = c.make();
  for (const NamedParameter& named : layer->NamedParameters()) {
    Parameter& parameter = *named.parameter;
    const bool is_bias = named.name.ends_with("bias");
    CH_RETURN_IF_ERROR(DistributeParameter(
        parameter, mesh,
        LayoutFor(mesh, parameter.data().ndim(), is_bias ? c.bias : c.weight,
                  /*unit=*/1)));
  }
  CH_RETURN_IF_ERROR(layer->Materialize({.seed = 3}));
  const Tensor whole = ToDType(SmallIntegers(c.sizes, 1), c.dtype);
  return RunOn(
      *layer, DistributeTensor(whole, mesh,
                               LayoutFor(mesh, whole.ndim(), c.input, c.unit)));
}

class LayersMeshTest : public ::testing::TestWithParam<Case> {};

TEST_P(LayersMeshTest, IsThatOfOneRank) {
  const Case& c = GetParam();
  const std::unique_ptr<Module> one = c.make();
  ASSERT_TRUE(one->Materialize({.seed = 3}).ok());
  const absl::StatusOr<TensorList> results =
      RunOn(*one, ToDType(SmallIntegers(c.sizes, 1), c.dtype));
  ASSERT_TRUE(results.ok()) << results.status();
  const Values expected = WholeOf(*results);
  OnMesh(c.mesh, [&](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const TensorList got, RunOn(c, mesh));
    CH_EXPECT_EQ(LayoutOf(got[0]).ToString(), c.output);
    CH_EXPECT_EQ(got[0].dtype(), c.dtype);
    ExpectNear(WholeOf(got), expected,
               c.dtype == kFloat32 ? kRoundings : kRoundingsOfBFloat16);
    return absl::OkStatus();
  });
}

const Shape kTokens = {5, 4, 6};
const Shape kChannels = {5, 6, 4};
const Shape kSound = {5, 4, 7};
const Shape kImages = {5, 4, 4, 6};

INSTANTIATE_TEST_SUITE_P(LayerNorms, LayersMeshTest,
                         ::testing::Values(Case{.name = "layer_norm_batch2",
                                                .make = MakeLayerNorm,
                                                .sizes = kTokens,
                                                .mesh = {2},
                                                .input = {Shard(0)},
                                                .output = "[S(0)]"},
                                           Case{.name = "layer_norm_time3",
                                                .make = MakeLayerNorm,
                                                .sizes = kTokens,
                                                .mesh = {3},
                                                .input = {Shard(1)},
                                                .output = "[S(1)]"},
                                           Case{.name = "layer_norm_both",
                                                .make = MakeLayerNorm,
                                                .sizes = kTokens,
                                                .mesh = {2, 2},
                                                .input = {Shard(0), Shard(1)},
                                                .output = "[S(0),S(1)]"},
                                           Case{
                                               .name = "layer_norm_bf16",
                                               .make = MakeLayerNorm,
                                               .sizes = kTokens,
                                               .mesh = {2, 2},
                                               .input = {Shard(1), Replicate()},
                                               .output = "[S(1),R]",
                                               .dtype = kBFloat16},
                                           Case{.name = "group_norm_batch3",
                                                .make = MakeGroupNorm,
                                                .sizes = kChannels,
                                                .mesh = {3},
                                                .input = {Shard(0)},
                                                .output = "[S(0)]"},
                                           Case{.name = "group_norm_groups2",
                                                .make = MakeGroupNorm,
                                                .sizes = kChannels,
                                                .mesh = {2},
                                                .input = {Shard(1)},
                                                .output = "[S(1)/2]",
                                                .unit = 2},
                                           Case{.name = "group_norm_both",
                                                .make = MakeGroupNorm,
                                                .sizes = kChannels,
                                                .mesh = {2, 2},
                                                .input = {Shard(1), Shard(0)},
                                                .output = "[S(1)/2,S(0)]",
                                                .unit = 2},
                                           Case{.name = "group_norm_bf16",
                                                .make = MakeGroupNorm,
                                                .sizes = kChannels,
                                                .mesh = {2},
                                                .input = {Shard(0)},
                                                .output = "[S(0)]",
                                                .dtype = kBFloat16}),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Convs, LayersMeshTest,
    ::testing::Values(Case{.name = "conv1d_batch2",
                           .make = MakeConv1d,
                           .sizes = kSound,
                           .mesh = {2},
                           .input = {Shard(0)},
                           .output = "[S(0)]"},
                      // A split of O splits the result.
                      Case{.name = "conv1d_out3",
                           .make = MakeConv1d,
                           .sizes = kSound,
                           .mesh = {3},
                           .input = {Replicate()},
                           .weight = {Shard(0)},
                           .bias = {Shard(0)},
                           .output = "[S(1)]"},
                      // Split input channels give partial sums.
                      Case{.name = "conv1d_in2",
                           .make = MakeConv1d,
                           .sizes = kSound,
                           .mesh = {2},
                           .input = {Shard(1)},
                           .weight = {Shard(1)},
                           .output = "[P(sum)]"},
                      Case{.name = "conv2d_batch_and_out",
                           .make = MakeConv2d,
                           .sizes = kImages,
                           .mesh = {2, 2},
                           .input = {Shard(0), Replicate()},
                           .weight = {Replicate(), Shard(0)},
                           .bias = {Replicate(), Shard(0)},
                           .output = "[S(0),S(1)]"},
                      Case{.name = "conv2d_in_and_out",
                           .make = MakeConv2d,
                           .sizes = kImages,
                           .mesh = {2, 2},
                           .input = {Shard(1), Replicate()},
                           .weight = {Shard(1), Shard(0)},
                           .bias = {Replicate(), Shard(0)},
                           .output = "[P(sum),S(1)]"},
                      Case{.name = "conv2d_bf16",
                           .make = MakeConv2d,
                           .sizes = kImages,
                           .mesh = {2, 2},
                           .input = {Shard(0), Replicate()},
                           .weight = {Replicate(), Shard(0)},
                           .bias = {Replicate(), Shard(0)},
                           .output = "[S(0),S(1)]",
                           .dtype = kBFloat16},
                      Case{.name = "grouped_conv_batch3",
                           .make = MakeGroupedConv,
                           .sizes = kImages,
                           .mesh = {3},
                           .input = {Shard(0)},
                           .output = "[S(0)]"},
                      Case{.name = "stem_batch2",
                           .make = MakeStem,
                           .sizes = kSound,
                           .mesh = {2},
                           .input = {Shard(0)},
                           .output = "[S(0)]"}),
    [](const auto& info) { return info.param.name; });

TEST(LayersMeshDeathTest, RefusesOtherSplits) {
  const auto run = [](const Case& c) {
    OnMesh(c.mesh, [&](const DeviceMesh& mesh) -> absl::Status {
      return RunOn(c, mesh).status();
    });
  };
  // Ranks hold parts of a group.
  const char* const kOwnWay =
      "by whole groups: by a unit .*DimSharding::unit.*module GroupNorm";
  EXPECT_DEATH(run({"", MakeGroupNorm, kChannels, {2}, {Shard(1)}}), kOwnWay);
  EXPECT_DEATH(run({"", MakeGroupNorm, kChannels, {2}, {Shard(2)}}), kOwnWay);
}

}  // namespace
}  // namespace crosshatch::nn
