// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/optim/clip_grad.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using ::testing::HasSubstr;

/// Returns element i of a gradient. Elements are distinct.
float Value(int64_t i, int seed) {
  return static_cast<float>((i * 37 + seed * 101) % 1009) / 512.0f - 1.0f;
}

/// Returns a box of a gradient of `sizes`, row-major.
std::vector<float> Values(const Shape& sizes, const Box& box, int seed) {
  std::vector<float> values;
  const Shape strides = ContiguousStrides(sizes);
  for (int64_t i = 0; i < NumElements(sizes); ++i) {
    bool inside = true;
    for (size_t d = 0; d < sizes.size(); ++d) {
      const int64_t at = i / strides[d] % sizes[d];
      inside =
          inside && at >= box.offsets[d] && at < box.offsets[d] + box.sizes[d];
    }
    if (inside) values.push_back(Value(i, seed));
  }
  return values;
}

std::unique_ptr<Parameter> WithGrad(const std::string& name,
                                    const Tensor& grad) {
  auto parameter = std::make_unique<Parameter>(
      grad.sizes(), kFloat32, Initializer{Initializer::Kind::kZeros});
  parameter->set_name(name);
  parameter->set_data(grad.Detach());
  parameter->set_grad(grad);
  return parameter;
}

Tensor Plain(const Shape& sizes, int seed) {
  const std::vector<float> values = Values(sizes, WholeBox(sizes), seed);
  return FromValues<float>(sizes, absl::MakeConstSpan(values));
}

Tensor Sharded(const DeviceMesh& mesh, const Layout& layout, const Shape& sizes,
               int seed) {
  const Box box = layout.LocalBox(sizes, *mesh.coordinate());
  const std::vector<float> values = Values(sizes, box, seed);
  return MakeDTensor(FromValues<float>(box.sizes, absl::MakeConstSpan(values)),
                     mesh, layout, sizes);
}

double SumOfSquares(const Shape& sizes, int seed) {
  double sum = 0;
  for (int64_t i = 0; i < NumElements(sizes); ++i) {
    sum += double{Value(i, seed)} * Value(i, seed);
  }
  return sum;
}

/// Returns the sum of powers for gradients 0, 1, ... of these shapes.
double SumOfPowers(const std::vector<Shape>& shapes, double p) {
  double sum = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    for (int64_t k = 0; k < NumElements(shapes[i]); ++k) {
      sum += std::pow(std::abs(double{Value(k, static_cast<int>(i))}), p);
    }
  }
  return sum;
}

double Largest(const std::vector<Shape>& shapes) {
  double largest = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    for (int64_t k = 0; k < NumElements(shapes[i]); ++k) {
      largest =
          std::max(largest, std::abs(double{Value(k, static_cast<int>(i))}));
    }
  }
  return largest;
}

TEST(ClipGradNormTest, ScalesByAnyNorm) {
  const auto a = WithGrad("a", FromValues<float>(Shape{2}, {3, 0}));
  const auto b = WithGrad("b", FromValues<float>(Shape{1, 1}, {-4}));
  const std::vector<Parameter*> all = {a.get(), b.get()};
  EXPECT_EQ(*GradNorm(all), 5);
  EXPECT_EQ(*GradNorm(all, 1), 7);
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(*ClipGradNorm(all, 2, {.norm_type = infinity}), 4.0f);
  EXPECT_NEAR(a->grad().ToVector<float>()[0], 1.5, 1e-6);
  EXPECT_NEAR(b->grad().ToVector<float>()[0], -2, 1e-6);
  for (const double type : {0.0, -1.0}) {
    EXPECT_TRUE(absl::IsInvalidArgument(GradNorm(all, type).status()));
  }
}

TEST(ClipGradValueTest, ClampsEachElement) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const auto a =
      WithGrad("a", FromValues<float>(Shape{5}, {3, -0.5, nan, -infinity, 1}));
  Parameter without({2}, kFloat32, {Initializer::Kind::kZeros});
  ASSERT_TRUE(ClipGradValue({a.get(), &without}, 1).ok());
  const std::vector<float> values = a->grad().ToVector<float>();
  EXPECT_EQ(values[0], 1);
  EXPECT_EQ(values[1], -0.5f);
  EXPECT_TRUE(std::isnan(values[2]));
  EXPECT_EQ(values[3], -1);
  EXPECT_EQ(values[4], 1);
  EXPECT_TRUE(absl::IsInvalidArgument(ClipGradValue({a.get()}, -1)));
}

TEST(ClipGradNormTest, ScalesToTheMaximum) {
  const auto a = WithGrad("a", FromValues<float>(Shape{2}, {3, 0}));
  const auto b = WithGrad("b", FromValues<float>(Shape{1, 1}, {-4}));
  const auto none = WithGrad("none", Zeros({0, 3}));
  Parameter without({2}, kFloat32, {Initializer::Kind::kZeros});
  const std::vector<Parameter*> all = {a.get(), b.get(), none.get(), &without};

  // A norm at or below the maximum changes nothing.
  EXPECT_EQ(*ClipGradNorm(all, 6), 5.0f);
  EXPECT_EQ(*ClipGradNorm(all, std::numeric_limits<double>::infinity()), 5.0f);
  EXPECT_EQ(b->grad().ToVector<float>()[0], -4.0f);

  EXPECT_EQ(*ClipGradNorm(all, 1), 5.0f);
  EXPECT_NEAR(a->grad().ToVector<float>()[0], 0.6, 1e-6);
  EXPECT_NEAR(b->grad().ToVector<float>()[0], -0.8, 1e-6);
  EXPECT_NEAR(*ClipGradNorm(all, 1), 1.0f, 1e-6);
  EXPECT_EQ(*ClipGradNorm({}, 1), 0.0f);
}

TEST(ScaleGradsToNormTest, ClipsPartsByTheNormOfTheWhole) {
  const auto a = WithGrad("a", Plain({7}, 1));
  const auto b = WithGrad("b", Plain({2, 3}, 2));
  const auto a_at_once = WithGrad("a", Plain({7}, 1));
  const auto b_at_once = WithGrad("b", Plain({2, 3}, 2));
  const absl::StatusOr<double> norm = GradNorm({a.get(), b.get()});
  ASSERT_TRUE(norm.ok()) << norm.status();
  for (const double max_norm : {1e3, 0.5}) {
    ASSERT_TRUE(ScaleGradsToNorm({a.get()}, max_norm, *norm).ok());
    ASSERT_TRUE(ScaleGradsToNorm({b.get()}, max_norm, *norm).ok());
    ASSERT_TRUE(
        ClipGradNorm({a_at_once.get(), b_at_once.get()}, max_norm).ok());
    EXPECT_EQ(a->grad().ToVector<float>(), a_at_once->grad().ToVector<float>());
    EXPECT_EQ(b->grad().ToVector<float>(), b_at_once->grad().ToVector<float>());
  }
  const absl::Status status =
      ScaleGradsToNorm({a.get()}, 1, std::numeric_limits<double>::infinity());
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
}

TEST(ClipGradNormTest, CountsAdjacentAndStridedParts) {
  const Tensor flat = Plain({12}, 1);
  const auto part = [&](int64_t offset, Shape sizes, Shape strides) {
    return MakeView(flat.storage(), offset, sizes, strides, kFloat32);
  };
  // Two neighbours, and one that is not contiguous.
  const auto a = WithGrad("a", part(0, {3}, {1}));
  const auto b = WithGrad("b", part(3, {1, 3}, {3, 1}));
  const auto c = WithGrad("c", part(6, {2, 3}, {1, 2}));
  const double norm = std::sqrt(SumOfSquares({12}, 1));
  EXPECT_FLOAT_EQ(*ClipGradNorm({a.get(), b.get(), c.get()}, norm / 2),
                  static_cast<float>(norm));
  const std::vector<float> values = flat.ToVector<float>();
  for (int64_t i = 0; i < 12; ++i) {
    EXPECT_NEAR(values[i], Value(i, 1) / 2, 1e-6) << i;
  }
}

TEST(ClipGradNormTest, EqualsTheSingleDeviceNormOnAnyMesh) {
  const std::vector<Shape> shapes = {{5, 3}, {1, 7}, {4}, {3, 3}, {6}, {2, 2}};
  double expected = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    expected += SumOfSquares(shapes[i], static_cast<int>(i));
  }
  expected = std::sqrt(expected);

  OnMesh({{"fsdp", 2}, {"tp", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(DeviceMesh tp, mesh.Slice("tp"));
    CH_ASSIGN_OR_RETURN(DeviceMesh fsdp, mesh.Slice("fsdp"));
    const auto replicated = [](const DeviceMesh& on, int ndim) {
      return Layout::Replicated(on.layout(), ndim);
    };
    std::vector<std::unique_ptr<Parameter>> owners;
    std::vector<Parameter*> parameters;
    const auto add = [&](const Tensor& grad) {
      owners.push_back(WithGrad("p" + std::to_string(owners.size()), grad));
      parameters.push_back(owners.back().get());
    };
    add(Sharded(mesh, replicated(mesh, 2).WithShard(0, 0).WithShard(1, 1),
                shapes[0], 0));
    add(Sharded(mesh, replicated(mesh, 2).WithShard(1, 0).WithShard(0, 0),
                shapes[1], 1));
    add(Sharded(mesh, replicated(mesh, 1).WithShard(0, 0), shapes[2], 2));
    add(Sharded(tp, replicated(tp, 2).WithShard(0, 1), shapes[3], 3));
    add(Plain(shapes[4], 4));
    add(Sharded(fsdp, replicated(fsdp, 2), shapes[5], 5));

    for (const double p : {0.5, 1.0, 3.0}) {
      CH_ASSIGN_OR_RETURN(const double norm, GradNorm(parameters, p));
      const double sum = SumOfPowers(shapes, p);
      // 36 additions, and a power of two roundings each.
      CH_EXPECT_NEAR(norm, std::pow(sum, 1 / p),
                     std::pow(sum, 1 / p) / p * 40 * 0x1p-52);
    }
    CH_ASSIGN_OR_RETURN(
        const double largest,
        GradNorm(parameters, std::numeric_limits<double>::infinity()));
    CH_EXPECT_EQ(largest, Largest(shapes));

    for (int round = 0; round < 2; ++round) {
      CH_ASSIGN_OR_RETURN(const float norm,
                          ClipGradNorm(parameters, expected / 2));
      const double now = round == 0 ? expected : expected / 2;
      CH_EXPECT_NEAR(norm, now, 1e-6 * now);
    }
    // Scaling also covers shards that this rank does not count.
    for (size_t i = 0; i < shapes.size(); ++i) {
      const Tensor& grad = parameters[i]->grad();
      Box box = WholeBox(shapes[i]);
      if (grad.is_distributed()) {
        box = LayoutOf(grad).LocalBox(shapes[i], *MeshOf(grad).coordinate());
      }
      const std::vector<float> before =
          Values(shapes[i], box, static_cast<int>(i));
      const std::vector<float> after = LocalTensor(grad).ToVector<float>();
      for (size_t k = 0; k < before.size(); ++k) {
        CH_EXPECT_NEAR(after[k], before[k] / 2, 1e-5);
      }
    }
    return absl::OkStatus();
  });
}

TEST(ClipGradNormTest, CopiesCountOnceThoughTheirSumsAreRoundedOtherwise) {
  OnMesh({{"dp", 2}, {"tp", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(DeviceMesh tp, mesh.Slice("tp"));
    const Layout layout =
        Layout::Replicated(tp.layout(), /*ndim=*/1).WithShard(0, 0);
    const auto norm_with = [&](double factor) {
      const double value = mesh.coordinate()->at(0) == 0 ? 3 : 3 * factor;
      const Tensor grad =
          MakeDTensor(Full({2}, value, kFloat64), tp, layout, {4});
      Parameter parameter({4}, kFloat64, Initializer{});
      parameter.set_data(grad.Detach());
      parameter.set_grad(grad);
      return GradNorm({&parameter});
    };
    CH_ASSIGN_OR_RETURN(const double of_copies, norm_with(1 + 0x1p-50));
    CH_EXPECT_NEAR(of_copies, 6, 6 * 0x1p-48);
    CH_ASSIGN_OR_RETURN(const double of_others, norm_with(1 + 0x1p-20));
    CH_EXPECT_NEAR(of_others, 6 * std::sqrt(2), 1e-4);
    return absl::OkStatus();
  });
}

TEST(ClipGradNormTest, NamesNonFiniteGradients) {
  const auto good = WithGrad("good", Ones({3}));
  const auto bad = WithGrad(
      "layers.0.bad",
      FromValues<float>(Shape{2}, {1, std::numeric_limits<float>::infinity()}));
  const absl::Status status = ClipGradNorm({good.get(), bad.get()}, 1).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the norm of the gradients is inf"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("layers.0.bad"));

  bad->set_grad(FromValues<float>(
      Shape{2}, {std::numeric_limits<float>::quiet_NaN(), 1}));
  EXPECT_THAT(std::string(ClipGradNorm({bad.get()}, 1).status().message()),
              HasSubstr("the norm of the gradients is nan"));
  const auto reported =
      ClipGradNorm({good.get(), bad.get()}, 1, {.error_if_nonfinite = false});
  ASSERT_TRUE(reported.ok());
  EXPECT_TRUE(std::isnan(*reported));
  EXPECT_EQ(good->grad().ToVector<float>()[0], 1.0f);
}

TEST(ClipGradNormTest, ScalesByTheFormulaThatItStates) {
  const double infinity = std::numeric_limits<double>::infinity();
  // With norm 5 and max_norm 5 the coefficient is below 1; with 5.1 it is not.
  for (const double max_norm : {0.0, 0.5, 5.0, 5.1, infinity}) {
    const auto p = WithGrad("p", FromValues<float>(Shape{2}, {3, -4}));
    const double factor = std::min(1.0, max_norm / (5 + 1e-6));
    EXPECT_EQ(*ClipGradNorm({p.get()}, max_norm), 5.0f);
    const std::vector<float> clipped = p->grad().ToVector<float>();
    EXPECT_EQ(clipped[0], 3 * static_cast<float>(factor)) << max_norm;
    EXPECT_EQ(clipped[1], -4 * static_cast<float>(factor)) << max_norm;
    const auto q = WithGrad("q", FromValues<float>(Shape{2}, {3, -4}));
    ASSERT_TRUE(ScaleGradsToNorm({q.get()}, max_norm, 5).ok());
    EXPECT_EQ(q->grad().ToVector<float>(), clipped);
  }
}

TEST(ClipGradNormTest, RefusesAMaximumThatIsNone) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const auto p = WithGrad("p", FromValues<float>(Shape{2}, {3, -4}));
  for (const double max_norm : {nan, -1.0, -1e-300, -infinity}) {
    for (const absl::Status& status :
         {ClipGradNorm({p.get()}, max_norm).status(),
          ScaleGradsToNorm({p.get()}, max_norm, 5)}) {
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("a norm of at least 0"));
    }
  }
  for (const double norm : {nan, -1.0, infinity}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ScaleGradsToNorm({p.get()}, 1, norm)));
  }
  EXPECT_EQ(p->grad().ToVector<float>(), (std::vector<float>{3, -4}));
}

TEST(ClipGradNormTest, ARankMayHaveNoGradient) {
  OnMesh({{"fsdp", 3}}, [](const DeviceMesh& mesh) -> absl::Status {
    World& world = mesh.world();
    const auto p = WithGrad(
        "p", MakeDTensor(FromValues<float>(Shape{1}, {2}), mesh,
                         Layout::Replicated(mesh.layout(), 1).WithShard(0, 0),
                         Shape{3}));
    if (world.rank() == 1) p->set_grad(Tensor());
    CH_ASSIGN_OR_RETURN(const double norm, GradNorm({p.get()}));
    CH_EXPECT_EQ(norm, std::sqrt(8.0));
    return absl::OkStatus();
  });
}

TEST(ClipGradNormTest, EveryRankReportsANonFiniteGradientOfOne) {
  CH_SKIP_ON(Device::Kind::kCuda, "writes to memory as the host");
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Shape sizes = {3};
  OnMesh({{"fsdp", 2}, {"tp", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
    const Layout whole = Layout::Replicated(mesh.layout(), 1);
    const Layout on_slice = Layout::Replicated(tp.layout(), 1);
    const auto all_forms = [&] {
      return std::vector<Tensor>{
          Sharded(mesh, whole, sizes, 0),
          Sharded(mesh, whole.WithShard(0, 0), sizes, 1),
          Sharded(mesh, whole.WithShard(1, 0), sizes, 2),
          Sharded(tp, on_slice, sizes, 3),
          Sharded(tp, on_slice.WithShard(0, 0), sizes, 4),
          Plain(sizes, 5),
      };
    };
    for (size_t form = 0; form < all_forms().size(); ++form) {
      for (int bad_rank = 0; bad_rank < mesh.size(); ++bad_rank) {
        for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                                std::numeric_limits<float>::infinity()}) {
          for (const double type : {1.0, 2.0, 3.0, kInfinity}) {
            const std::vector<Tensor> grads = all_forms();
            if (mesh.world().rank() == bad_rank) {
              const Tensor local = LocalTensor(grads[form]);
              // Each rank has an element 0.
              local.data<float>()[0] = bad;
            }
            std::vector<std::unique_ptr<Parameter>> owners;
            std::vector<Parameter*> all;
            for (size_t i = 0; i < grads.size(); ++i) {
              owners.push_back(WithGrad("p" + std::to_string(i), grads[i]));
              all.push_back(owners.back().get());
            }
            const absl::Status status =
                ClipGradNorm(all, 1, {.norm_type = type}).status();
            CH_EXPECT_TRUE(absl::IsInvalidArgument(status))
                << form << " on rank " << bad_rank << ", norm " << type;
            CH_EXPECT_THAT(
                std::string(status.message()),
                HasSubstr(mesh.world().rank() == bad_rank
                              ? "that of p" + std::to_string(form) + " holds"
                              : "another rank holds"));
          }
        }
      }
    }
    return absl::OkStatus();
  });
}

TEST(ClipGradNormTest, RefusesPartialSums) {
  OnMesh({{"tp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    const auto p = WithGrad(
        "p",
        MakeDTensor(
            Ones({2}), mesh,
            Layout::Replicated(mesh.layout(), 1).WithPartial(0, ReduceOp::kSum),
            Shape{2}));
    const absl::Status clip = ClipGradNorm({p.get()}, 1).status();
    CH_EXPECT_TRUE(absl::IsFailedPrecondition(clip)) << clip;
    CH_EXPECT_THAT(std::string(clip.message()), HasSubstr("the gradient of p"));
    return absl::OkStatus();
  });
}

TEST(ClipGradTest, RefusesGradientsThatWereNotReduced) {
  RunRanks(1, [](World&) -> absl::Status {
    const auto parameter = WithGrad("a", Plain({3}, 1));
    parameter->set_gradient_is_pending(true);
    Parameter* const list[] = {parameter.get()};
    for (const absl::Status& status :
         {GradNorm(list).status(), ClipGradNorm(list, 1).status(),
          ScaleGradsToNorm(list, 1, 2), ClipGradValue(list, 1)}) {
      CH_EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      CH_EXPECT_THAT(std::string(status.message()),
                     HasSubstr("the gradient of a was not reduced: set "
                               "fsdp::Settings::requires_gradient_sync"));
    }
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace crosshatch::nn
