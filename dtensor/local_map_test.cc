// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/local_map.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/dtensor_testutil.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch {
namespace {

Layout AllSums(const DeviceMesh& mesh, int ndim) {
  Layout layout = Whole(mesh, ndim);
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    layout = layout.WithPartial(axis, ReduceOp::kSum);
  }
  return layout;
}

// Returns `layout` with pending sums on the axes that split nothing.
Layout SumsElsewhere(const Layout& layout) {
  Layout sums = layout;
  for (int axis = 0; axis < layout.mesh().ndim(); ++axis) {
    if (layout.state_of_axis(axis).is_replicate()) {
      sums = sums.WithPartial(axis, ReduceOp::kSum);
    }
  }
  return sums;
}

TensorList LocalMatMul(TensorSpan in) { return {MatMul(in[0], in[1])}; }

struct Product {
  Tensor value;
  Tensor grad_x;
  Tensor grad_w;
};

Product Differentiated(const Tensor& y, const Tensor& x, const Tensor& w) {
  const Tensor weight = ReplicatedLike(Numbers(y.sizes(), 3), y);
  const absl::Status status = Backward(Sum(Mul(y, weight)));
  CH_EXPECT_OK(status);
  return {y, x.grad(), w.grad()};
}

// Returns `whole` with `dim` split by all axes.
Layout Split(Layout whole, int dim) {
  for (int axis = 0; axis < whole.mesh().ndim(); ++axis) {
    whole = whole.WithShard(axis, dim);
  }
  return whole;
}

// x [rows, inner] w [inner, 4] by `spec`, from every layout of x.
void CheckProduct(const DeviceMesh& mesh, const Tensor& x, const Tensor& w,
                  const LocalMapSpec& spec) {
  const auto leaf = [](const Tensor& t) {
    return t.Detach().set_requires_grad(true);
  };
  const Tensor dense_x = leaf(x);
  const Tensor dense_w = leaf(w);
  const Product expected =
      Differentiated(MatMul(dense_x, dense_w), dense_x, dense_w);
  for (const Layout& from : AllLayouts(mesh.layout(), 2, true)) {
    const Tensor spread_x = leaf(Spread(x, mesh, from));
    const Tensor spread_w = leaf(Spread(w, mesh, *spec.inputs[1].layout));
    const auto y = LocalMap(LocalMatMul, {spread_x, spread_w}, mesh, spec);
    CH_EXPECT_OK(y);
    if (!y.ok()) return;
    CH_EXPECT_EQ(LayoutOf((*y)[0]), spec.outputs[0].layout);
    const Product actual = Differentiated((*y)[0], spread_x, spread_w);
    CH_EXPECT_EQ(Differs(actual.value, expected.value), "");
    CH_EXPECT_EQ(Differs(actual.grad_x, expected.grad_x), "");
    CH_EXPECT_EQ(Differs(actual.grad_w, expected.grad_w), "");
  }
}

// Rows are split in every way (including uneven and empty parts). Each rank has
// all of w and a summand of its gradient.
TEST(LocalMap, SplitsRows) {
  for (const int64_t rows : {0, 1, 2, 5, 7}) {
    OnMeshes({{2}, {3}, {2, 2}}, [&](const DeviceMesh& mesh) {
      const Layout split = Split(Whole(mesh, 2), 0);
      CheckProduct(
          mesh, Numbers({rows, 5}, 1), Numbers({5, 4}, 2),
          {.inputs = {{split, split}, {Whole(mesh, 2), AllSums(mesh, 2)}},
           .outputs = {{split, {rows, 4}, split}},
           .redistribute_inputs = true});
    });
  }
}

// The inner dim split: outputs are summands.
TEST(LocalMap, GivesSummands) {
  OnMeshes({{2}, {4}, {2, 2}}, [](const DeviceMesh& mesh) {
    const Layout columns = Split(Whole(mesh, 2), 1);
    const Layout rows = Split(Whole(mesh, 2), 0);
    CheckProduct(mesh, Numbers({2, 3}, 1), Numbers({3, 4}, 2),
                 {.inputs = {{columns, columns}, {rows, rows}},
                  .outputs = {{AllSums(mesh, 2), {2, 4}, Whole(mesh, 2)}},
                  .redistribute_inputs = true});
  });
}

// If all ranks compute the same, each has the whole gradient; declared as
// summands it would count once per rank.
TEST(LocalMap, DistinguishesReplicatedFromPartialGradients) {
  OnMesh({3}, [](const DeviceMesh& mesh) {
    const Layout whole = Whole(mesh, 1);
    const auto gradient_of = [&](const Layout& in, const Layout& out) {
      Tensor x = Spread(Numbers({4}, 1), mesh, whole);
      x.set_requires_grad(true);
      const auto y = LocalMap(
          [](TensorSpan t) -> TensorList { return {Mul(t[0], 5)}; }, {x}, mesh,
          {.inputs = {{whole, in}}, .outputs = {{whole, {4}, out}}});
      CH_EXPECT_OK(y);
      const absl::Status status = Backward(Sum((*y)[0]));
      CH_EXPECT_OK(status);
      return x.grad();
    };
    const Layout sums = AllSums(mesh, 1);
    CH_EXPECT_EQ(Differs(gradient_of(whole, whole), Full({4}, 5)), "");
    CH_EXPECT_EQ(Differs(gradient_of(sums, sums), Full({4}, 5)), "");
    CH_EXPECT_EQ(Differs(gradient_of(sums, whole), Full({4}, 15)), "");
  });
}

TEST(LocalMap, TakesPlainTensorsAndNoGradients) {
  OnMesh({2, 2}, [](const DeviceMesh& mesh) {
    const Tensor dense = Numbers({5, 3}, 1);
    const Tensor offset = Full({}, 10);
    for (const Layout& layout : AllLayouts(mesh.layout(), 2, false)) {
      const auto y = LocalMap(
          [](TensorSpan t) -> TensorList {
            return {Add(t[0], t[1]), Greater(t[0], ZerosLike(t[0]))};
          },
          {Spread(dense, mesh, layout), offset}, mesh,
          {.inputs = {{layout}, {}},
           .outputs = {{layout, {5, 3}}, {layout, {5, 3}}}});
      CH_EXPECT_OK(y);
      if (!y.ok()) return;
      CH_EXPECT_EQ(Differs((*y)[0], Add(dense, 10)), "");
      CH_EXPECT_EQ(Differs((*y)[1], Greater(dense, ZerosLike(dense))), "");
    }
  });
}

// Other axes replicate, and the gradients along them are whole or summands, as
// declared.
TEST(LocalMap, KeepsOtherAxes) {
  OnMesh({2, 2}, [](const DeviceMesh& mesh) {
    const Layout rows = Rows(mesh);
    Tensor x = Spread(Numbers({3, 4}, 1), mesh, rows);
    x.set_requires_grad(true);
    const auto y = LocalMap(
        [](TensorSpan t) -> TensorList { return {Square(t[0])}; }, {x}, mesh,
        {.inputs = {{rows, SumsElsewhere(rows)}},
         .outputs = {{rows, {3, 4}, SumsElsewhere(rows)}}});
    CH_EXPECT_OK(y);
    const absl::Status status = Backward(Sum((*y)[0]));
    CH_EXPECT_OK(status);
    CH_EXPECT_EQ(Differs(x.grad(), Mul(Numbers({3, 4}, 1), 2)), "");
  });
}

TEST(LocalMap, RefusesWrongDeclarations) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    const Layout whole = Whole(mesh, 1);
    const Layout rows = whole.WithShard(0, 0);
    const Layout sums = AllSums(mesh, 1);
    const Layout averages = whole.WithPartial(0, ReduceOp::kAvg);
    Tensor x = Spread(Numbers({4}, 1), mesh, rows);
    x.set_requires_grad(true);
    Tensor constant = Spread(Numbers({4}, 1), mesh, rows);
    Tensor plain = Ones({4});
    plain.set_requires_grad(true);
    const LocalMapSpec::Output out = {rows, {4}, rows};
    std::ostringstream on_device;
    on_device << "output 0: f32[2] on " << x.device()
              << " requires a gradient and no grad_layout";
    const auto expect = [&](const std::string& message, const Tensor& input,
                            const LocalMapSpec& spec) {
      const auto y =
          LocalMap([](TensorSpan t) -> TensorList { return {Mul(t[0], 2)}; },
                   {input}, mesh, spec);
      CH_EXPECT_EQ(y.status().code(), absl::StatusCode::kInvalidArgument)
          << message;
      CH_EXPECT_THAT(std::string(y.status().message()),
                     ::testing::HasSubstr(message));
    };
    expect("1 inputs, 2 are declared", x, {{{rows, rows}, {}}, {out}});
    expect("has layout [S(0)], is declared [R]", x, {{{whole, whole}}, {out}});
    expect("requires a gradient and no grad_layout", x, {{{rows}}, {out}});
    expect("input 0: its gradient must be split as the tensor is, by [S(0)]", x,
           {{{rows, whole}}, {out}});
    expect("is declared plain", x, {{{}}, {out}});
    expect("is declared as", Ones({4}), {{{rows}}, {out}});
    expect("requires a gradient, which would differ", plain, {{{}}, {out}});
    expect("of 2 dims, the tensor has 1", x,
           {{{Whole(mesh, 2), whole}}, {out}});
    expect("whole gradient, which is declared a sum", x,
           {{{sums, sums}}, {out}, true});
    expect("gradients add up", x, {{{whole, averages}}, {out}, true});
    expect("output 0: its gradient must be split", x,
           {{{rows, rows}}, {{rows, {4}, sums}}});
    expect("output 0: the layout [R] of its gradient is of 2 dims", x,
           {{{rows, rows}}, {{rows, {4}, Whole(mesh, 2)}}});
    expect(on_device.str(), x, {{{rows, rows}}, {{rows, {4}}}});
    expect("pending sums only", x, {{{rows, rows}}, {{averages, {2}, whole}}});
    expect("gave 1 outputs, 2 are declared", x, {{{rows, rows}}, {out, out}});
    expect("gradients go through pending sums only", x,
           {{{averages, whole}}, {out}, true});
    // Without a gradient, its layouts do not matter.
    const auto y =
        LocalMap([](TensorSpan t) -> TensorList { return {Mul(t[0], 2)}; },
                 {constant}, mesh, {{{rows}}, {{rows, {4}}}});
    CH_EXPECT_OK(y);
  });
}

TEST(LocalMap, IsAnErrorOnARankOffTheMesh) {
  RunRanks(3, [](World& world) {
    const auto mesh = InitDeviceMesh(world, {{"a", 2}});
    const Layout rows = Rows(*mesh, 1);
    const auto y =
        LocalMap([](TensorSpan t) -> TensorList { return {Mul(t[0], 2)}; },
                 {Ones({2})}, *mesh, {{{}}, {{rows, {4}}}});
    if (world.rank() < 2) {
      CH_EXPECT_OK(y);
    } else {
      CH_EXPECT_EQ(y.status().code(), absl::StatusCode::kInvalidArgument);
      CH_EXPECT_TRUE(
          absl::StrContains(y.status().message(), "rank 2 is not on mesh(a=2)"))
          << y.status();
    }
    return absl::OkStatus();
  });
}

TEST(LocalMapDeathTest, RefusesOutputsOfAnotherShape) {
  ExpectDeathOn(
      {2},
      "LocalMap: output 0: the function gave f32\\[1\\].* the shard of \\[5\\] "
      "by \\[S\\(0\\)\\] here is",
      [](const DeviceMesh& mesh) {
        const Layout rows = Rows(mesh, 1);
        const auto y = LocalMap(
            [](TensorSpan t) -> TensorList { return {Slice(t[0], 0, 0, 1)}; },
            {Spread(Numbers({5}, 1), mesh, rows)}, mesh,
            {{{rows}}, {{rows, {5}}}});
      });
}

}  // namespace
}  // namespace crosshatch
