// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/dtensor_testutil.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/dtensor/dispatch/dtensor_handler.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/ops/saving_node.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/expect.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

// (x) -> a copy of x, whose gradient is redistributed.
class WithGradientInOp final : public WholeOp {
 public:
  static constexpr OpInfo kInfo = {"with_gradient_in"};
  explicit WithGradientInOp(const Layout& gradient) : gradient_(gradient) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override {
    NoGrad no_grad;
    return {Clone(inputs[0])};
  }
  std::shared_ptr<Node> Differentiate(TensorSpan /*inputs*/,
                                      TensorSpan /*outputs*/) const override {
    return MakeNode<0>(kInfo,
                       [gradient = gradient_](const auto&, TensorSpan grads,
                                              GradientSlots& slots) {
                         slots.Put(0, Redistribute(grads[0], gradient));
                       });
  }

 private:
  const Layout& gradient_;
};

}  // namespace

Layout Whole(const DeviceMesh& mesh, int ndim) {
  return Layout::Replicated(mesh.layout(), ndim);
}

Layout Rows(const DeviceMesh& mesh, int ndim) {
  return Whole(mesh, ndim).WithShard(0, 0);
}

Layout Sums(const DeviceMesh& mesh, int ndim) {
  return Whole(mesh, ndim).WithPartial(0, ReduceOp::kSum);
}

Tensor Numbers(ShapeView sizes, int seed, DType dtype) {
  std::vector<float> values(NumElements(sizes));
  uint32_t state = static_cast<uint32_t>(seed) * 2654435761u + 12345u;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<int>(state >> 24) % 7 - 3);
  }
  return ToDType(FromValues<float>(sizes, values), dtype);
}

Tensor Fractions(ShapeView sizes, int seed) {
  std::vector<float> values(NumElements(sizes));
  uint32_t state = static_cast<uint32_t>(seed) * 2654435761u + 777u;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(state >> 8) / (1 << 23) - 1.0f;
  }
  return FromValues<float>(sizes, values);
}

Tensor WithGradientIn(const Tensor& x, const Layout& gradient) {
  return Apply1(WithGradientInOp(gradient), {&x, 1});
}

Tensor Spread(const Tensor& dense, const DeviceMesh& mesh,
              const Layout& layout) {
  NoGrad no_grad;
  // A rank holds factor * whole + added. Along an axis of n ranks the summands
  // are n, -1, -1, ... times the whole, multiplied by n if they are averaged.
  // The factors of a product are the whole and ones. For maxima and minima all
  // but the last rank have a different value.
  double factor = 1;
  double added = 0;
  Layout whole = layout;
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    const AxisState& state = layout.state_of_axis(axis);
    if (!state.is_partial()) continue;
    const int n = mesh.size(axis);
    const bool first = *mesh.index(axis) == 0;
    const bool last = *mesh.index(axis) == n - 1;
    switch (state.op) {
      case ReduceOp::kSum:
        factor *= first ? n : -1;
        break;
      case ReduceOp::kAvg:
        factor *= (first ? n : -1) * n;
        break;
      case ReduceOp::kProduct:
        if (!first) {
          factor = 0;
          added = 1;
        }
        break;
      case ReduceOp::kMax:
        if (!last) added -= 1;
        break;
      case ReduceOp::kMin:
        if (!last) added += 1;
        break;
    }
    whole = whole.WithReplicate(axis);
  }
  const Tensor spread = DistributeTensor(dense, mesh, whole);
  Tensor local = LocalTensor(spread);
  if (factor != 1) local = Mul(local, factor);
  if (added != 0) local = Add(local, added);
  return MakeDTensor(std::move(local), mesh, layout, dense.sizes());
}

std::string Differs(const Tensor& actual, const Tensor& dense,
                    double tolerance) {
  if (!actual.defined()) return "undefined";
  if (actual.sizes() != dense.sizes() || actual.dtype() != dense.dtype()) {
    return absl::StrCat(actual.Describe(), " compared with ", dense.Describe());
  }
  const auto as_doubles = [](const Tensor& t) {
    NoGrad no_grad;
    return ToDType(t, kFloat64).ToVector<double>();
  };
  const std::vector<double> a = as_doubles(FullTensor(actual));
  const std::vector<double> b = as_doubles(dense);
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (a[i] == b[i]) continue;
    const double size = std::max({1.0, std::abs(a[i]), std::abs(b[i])});
    if (!(std::abs(a[i] - b[i]) <= tolerance * size)) {
      return absl::StrCat(actual.Describe(), ": element ", i, " is ", a[i],
                          ", should be ", b[i]);
    }
  }
  return "";
}

void ExpectGradientsThrough(const Tensor& x, const Tensor& y,
                            const Tensor& dense) {
  const Tensor inputs[] = {x};
  const TensorList first =
      Gradients(Sum(Mul(y, Mul(y, y))), inputs, {.create_graph = true}).value();
  CH_EXPECT_EQ(Differs(first[0], Mul(Mul(dense, dense), 3)), "");
  const TensorList second = Gradients(Sum(first[0]), inputs).value();
  CH_EXPECT_EQ(Differs(second[0], Mul(dense, 6)), "");
}

int64_t BytesReceived(World& world) {
  int64_t bytes = 0;
  for (const auto& group : world.groups()) {
    for (const auto& count : group->stats().by_kind) bytes += count.bytes;
  }
  return bytes;
}

void ExpectDeathOn(const MeshAxes& axes, const std::string& message,
                   const std::function<void(const DeviceMesh&)>& body,
                   const std::source_location& where) {
  const testing::ScopedTrace trace(where.file_name(),
                                   static_cast<int>(where.line()), message);
  EXPECT_DEATH(OnMesh(axes, body), message);
}

}  // namespace crosshatch
