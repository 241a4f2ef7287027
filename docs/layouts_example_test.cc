// SPDX-License-Identifier: Apache-2.0

/// \file
/// The C++ excerpts of docs/layouts.md, which prints the text between [name]
/// and [/name].
/// [/name] is printed there.

#include <cstdint>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/local_map.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/ranks.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

TEST(LayoutsExampleTest, Layout) {
  // [layout]
  absl::StatusOr<MeshLayout> mesh = MeshLayout::Create({{"dp", 2}, {"tp", 2}});
  absl::StatusOr<Layout> layout = Layout::Of(*mesh, {{"dp"}, {"tp"}});
  absl::StatusOr<Layout> by_placements =
      Layout::FromPlacements(*mesh, /*ndim=*/2, {Shard(0), Shard(1)});
  Layout same(*mesh, {DimSharding{.axes = {0}}, DimSharding{.axes = {1}}});

  Box part = same.LocalBox(/*global_shape=*/{4, 6}, /*coordinate=*/{1, 0});
  // part.offsets is {2, 0}, part.sizes (the local shape) is {2, 3}.
  // [/layout]
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(*layout, same);
  EXPECT_EQ(*by_placements, same);
  EXPECT_EQ(part.offsets, Shape({2, 0}));
  EXPECT_EQ(part.sizes, Shape({2, 3}));
}

absl::Status ByAxisNames(const MeshLayout& mesh) {
  // [axis_names]
  // Rows by fsdp within tp, in units of 64: what FSDP makes of a
  // column-parallel weight with heads of 64.
  CH_ASSIGN_OR_RETURN(Layout weight, Layout::Of(mesh, {{"tp", "fsdp"}, {}},
                                                {.units = {64, 1}}));
  // weight.ToStringByDim() is "{tp,fsdp}/64 {}".
  CH_ASSIGN_OR_RETURN(Layout sums,
                      Layout::Of(mesh, {{"fsdp"}, {}}, {.partial = {{"tp"}}}));
  // sums.ToStringByDim() is "{fsdp} {} P(sum){tp}".
  // [/axis_names]
  EXPECT_EQ(weight.ToStringByDim(), "{tp,fsdp}/64 {}");
  EXPECT_EQ(sums.ToStringByDim(), "{fsdp} {} P(sum){tp}");
  return absl::OkStatus();
}

TEST(LayoutsExampleTest, AxisNames) {
  EXPECT_EQ(ByAxisNames(MeshLayout::Create({{"fsdp", 2}, {"tp", 2}}).value()),
            absl::OkStatus());
  const MeshLayout other = MeshLayout::Create({{"dp", 2}, {"cp", 2}}).value();
  EXPECT_EQ(Layout::Of(other, {{"dp"}, {"tp"}}).status().message(),
            "layout: axis \"tp\" splits dim 1: mesh(dp=2, cp=2) has no such "
            "axis");
  EXPECT_EQ(Layout::Of(other, {{"dp"}, {"dp"}}).status().message(),
            "layout: axis \"dp\" of mesh(dp=2, cp=2) splits dim 0 and splits "
            "dim 1: list each axis once");
}

// Small integers, so that sums are exact in any order.
Tensor Integers(const Shape& sizes, int start) {
  std::vector<float> values;
  for (int64_t i = 0; i < NumElements(sizes); ++i) {
    values.push_back(static_cast<float>((start + i) % 5));
  }
  return FromValues<float>(sizes, values);
}

TEST(LayoutsExampleTest, Borders) {
  constexpr int kRanks = 2;
  std::vector<std::vector<float>> weight_gradients(kRanks);
  std::vector<std::vector<float>> row_gradients(kRanks);
  const absl::Status status = StatusOfRanks(kRanks, [&](World& world) {
    CH_ASSIGN_OR_RETURN(DeviceMesh mesh,
                        InitDeviceMesh(world, {{"dp", kRanks}}));
    const Layout replicated = Layout::Replicated(mesh.layout(), 2);
    const Layout sharded = replicated.WithShard(0, 0);
    const Layout partial = replicated.WithPartial(0, ReduceOp::kSum);
    Tensor x = Integers({4, 6}, world.rank() * 24);
    x.set_requires_grad(true);
    Tensor w = DistributeTensor(Integers({6, 3}, 1), mesh, replicated);
    w.set_requires_grad(true);
    // [borders]
    // x is 4 rows, this rank's part of 8. Each row's result depends on that row
    // alone, so the gradient of a shard is a shard.
    Tensor rows = FromLocal(x, mesh, sharded, {8, 6}, /*grad_layout=*/sharded);
    // w is on every rank, and each uses it for its own rows: the local
    // gradients are summands of w's.
    Tensor weight = ToLocal(w, /*grad_layout=*/partial);
    Tensor y = MatMul(ToLocal(rows, /*grad_layout=*/sharded), weight);
    // [/borders]
    CH_RETURN_IF_ERROR(Backward(Sum(y)));
    const auto rank = static_cast<size_t>(world.rank());
    weight_gradients[rank] = LocalTensor(w.grad()).ToVector<float>();
    row_gradients[rank] = x.grad().ToVector<float>();
    return absl::OkStatus();
  });
  ASSERT_TRUE(status.ok()) << status;

  // The gradient of sum(x w) by w is the sum of x's rows, for each column.
  const std::vector<float> x = Integers({8, 6}, 0).ToVector<float>();
  const std::vector<float> w = Integers({6, 3}, 1).ToVector<float>();
  for (size_t rank = 0; rank < kRanks; ++rank) {
    ASSERT_EQ(weight_gradients[rank].size(), 18u);
    ASSERT_EQ(row_gradients[rank].size(), 24u);
    for (size_t k = 0; k < 6; ++k) {
      float of_w = 0;
      for (size_t row = 0; row < 8; ++row) of_w += x[row * 6 + k];
      float of_x = 0;
      for (size_t n = 0; n < 3; ++n) {
        of_x += w[k * 3 + n];
        EXPECT_EQ(weight_gradients[rank][k * 3 + n], of_w);
      }
      for (size_t row = 0; row < 4; ++row) {
        EXPECT_EQ(row_gradients[rank][row * 6 + k], of_x);
      }
    }
  }
}

TEST(LayoutsExampleTest, LocalMap) {
  OnMesh({{"dp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    const Layout replicated = Layout::Replicated(mesh.layout(), 2);
    const Layout rows = replicated.WithShard(0, 0);
    const Layout sums = replicated.WithPartial(0, ReduceOp::kSum);
    Tensor x = DistributeTensor(Integers({5, 6}, 0), mesh, rows);
    Tensor w = DistributeTensor(Integers({6, 3}, 1), mesh, replicated);
    w.set_requires_grad(true);
    // [local_map]
    // Each rank has its own rows of x and all of w, so it adds a summand to the
    // gradient of w.
    CH_ASSIGN_OR_RETURN(
        TensorList y,
        LocalMap(
            [](TensorSpan in) -> TensorList { return {MatMul(in[0], in[1])}; },
            {x, w}, mesh,
            {.inputs = {{rows, /*grad_layout=*/rows},
                        {replicated, /*grad_layout=*/sums}},
             .outputs = {{rows, /*sizes=*/{5, 3}, /*grad_layout=*/rows}}}));
    // [/local_map]
    CH_RETURN_IF_ERROR(Backward(Sum(y[0])));
    CH_EXPECT_EQ(
        FullTensor(y[0]).ToVector<float>(),
        MatMul(Integers({5, 6}, 0), Integers({6, 3}, 1)).ToVector<float>());
    CH_EXPECT_EQ(LocalTensor(w.grad()).ToVector<float>(),
                 MatMul(Integers({5, 6}, 0), Ones({5, 3}), true, false)
                     .ToVector<float>());
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace crosshatch
