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

struct Layer {
  std::function<std::unique_ptr<Module>()> make;
  Shape sizes;  // Of the input.
};
const Layer kLayerNorm = {MakeLayerNorm, {5, 4, 6}};
const Layer kGroupNorm = {MakeGroupNorm, {5, 6, 4}};
const Layer kConv1d = {MakeConv1d, {5, 4, 7}};
const Layer kConv2d = {MakeConv2d, {5, 4, 4, 6}};
const Layer kGroupedConv = {MakeGroupedConv, {5, 4, 4, 6}};
const Layer kStem = {MakeStem, {5, 4, 7}};

struct Case {
  std::string name;
  Layer layer;
  std::vector<int> mesh;
  /// One placement per mesh axis, or none for replicated.
  std::vector<Placement> input;
  /// The layout of the result.
  std::string output = "";
  std::vector<Placement> weight = {};
  std::vector<Placement> bias = {};
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
  const std::unique_ptr<Module> layer = c.layer.make();
  for (const NamedParameter& named : layer->NamedParameters()) {
    Parameter& parameter = *named.parameter;
    const bool is_bias = named.name.ends_with("bias");
    CH_RETURN_IF_ERROR(DistributeParameter(
        parameter, mesh,
        LayoutFor(mesh, parameter.data().ndim(), is_bias ? c.bias : c.weight,
                  /*unit=*/1)));
  }
  CH_RETURN_IF_ERROR(layer->Materialize({.seed = 3}));
  const Tensor whole = ToDType(SmallIntegers(c.layer.sizes, 1), c.dtype);
  return RunOn(
      *layer, DistributeTensor(whole, mesh,
                               LayoutFor(mesh, whole.ndim(), c.input, c.unit)));
}

class LayersMeshTest : public ::testing::TestWithParam<Case> {};

TEST_P(LayersMeshTest, IsThatOfOneRank) {
  const Case& c = GetParam();
  const std::unique_ptr<Module> one = c.layer.make();
  ASSERT_TRUE(one->Materialize({.seed = 3}).ok());
  const absl::StatusOr<TensorList> results =
      RunOn(*one, ToDType(SmallIntegers(c.layer.sizes, 1), c.dtype));
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

std::vector<Case> Cases() {
  const Placement all = Replicate();
  const std::vector<Placement> batch = {Shard(0), all};
  const std::vector<Placement> out = {all, Shard(0)};
  return {
      {"layer_norm_time3", kLayerNorm, {3}, {Shard(1)}, "[S(1)]"},
      {"layer_norm_both",
       kLayerNorm,
       {2, 2},
       {Shard(0), Shard(1)},
       "[S(0),S(1)]"},
      {.name = "layer_norm_bf16",
       .layer = kLayerNorm,
       .mesh = {2, 2},
       .input = {Shard(1), all},
       .output = "[S(1),R]",
       .dtype = kBFloat16},
      {"group_norm_batch3", kGroupNorm, {3}, {Shard(0)}, "[S(0)]"},
      {.name = "group_norm_groups2",
       .layer = kGroupNorm,
       .mesh = {2},
       .input = {Shard(1)},
       .output = "[S(1)/2]",
       .unit = 2},
      {.name = "group_norm_both",
       .layer = kGroupNorm,
       .mesh = {2, 2},
       .input = {Shard(1), Shard(0)},
       .output = "[S(1)/2,S(0)]",
       .unit = 2},
      {.name = "group_norm_bf16",
       .layer = kGroupNorm,
       .mesh = {2},
       .input = {Shard(0)},
       .output = "[S(0)]",
       .dtype = kBFloat16},
      // A split of O splits the result.
      {"conv1d_out3", kConv1d, {3}, {all}, "[S(1)]", {Shard(0)}, {Shard(0)}},
      // Split input channels give partial sums.
      {"conv1d_in2", kConv1d, {2}, {Shard(1)}, "[P(sum)]", {Shard(1)}},
      {"conv2d_batch_and_out", kConv2d, {2, 2}, batch, "[S(0),S(1)]", out, out},
      {"conv2d_in_and_out",
       kConv2d,
       {2, 2},
       {Shard(1), all},
       "[P(sum),S(1)]",
       {Shard(1), Shard(0)},
       out},
      {.name = "conv2d_bf16",
       .layer = kConv2d,
       .mesh = {2, 2},
       .input = batch,
       .output = "[S(0),S(1)]",
       .weight = out,
       .bias = out,
       .dtype = kBFloat16},
      {"grouped_conv_batch3", kGroupedConv, {3}, {Shard(0)}, "[S(0)]"},
      {"stem_batch2", kStem, {2}, {Shard(0)}, "[S(0)]"},
  };
}

INSTANTIATE_TEST_SUITE_P(All, LayersMeshTest, ::testing::ValuesIn(Cases()),
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
  EXPECT_DEATH(run({"", kGroupNorm, {2}, {Shard(1)}}), kOwnWay);
  EXPECT_DEATH(run({"", kGroupNorm, {2}, {Shard(2)}}), kOwnWay);
}

}  // namespace
}  // namespace crosshatch::nn
