// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/optim/adamw.h"

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/name_pattern.h"
#include "crosshatch/nn/optim/optim_testutil.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Implements torch.optim.AdamW as documented, in double.
class Reference {
 public:
  Reference(const std::vector<float>& values, const AdamWOptions& options)
      : options_(options), m_(values.size()), v_(values.size()) {
    for (float value : values) p_.push_back(value);
  }
  void Step(const std::vector<float>& grad) {
    ++step_;
    for (size_t i = 0; i < p_.size(); ++i) {
      p_[i] *= 1 - options_.lr * options_.weight_decay;
      m_[i] = options_.beta1 * m_[i] + (1 - options_.beta1) * grad[i];
      v_[i] = options_.beta2 * v_[i] + (1 - options_.beta2) * grad[i] * grad[i];
      const double m_hat = m_[i] / (1 - std::pow(options_.beta1, step_));
      const double v_hat = v_[i] / (1 - std::pow(options_.beta2, step_));
      p_[i] -= options_.lr * m_hat / (std::sqrt(v_hat) + options_.eps);
    }
  }
  const std::vector<double>& values() const { return p_; }

 private:
  AdamWOptions options_;
  int step_ = 0;
  std::vector<double> p_;
  std::vector<double> m_;
  std::vector<double> v_;
};

// Returns the error bound of `steps` steps. Each rounds the parameter twice and
// the update, of at most about lr, a dozen times.
double Bound(int steps, double value) {
  return steps * 0x1p-24 * (3 * std::abs(value) + 24 * 4 * kOptions.lr);
}

// Gradients of about 1, and gradients so small that eps dominates the divisor.
TEST(AdamWTest, FollowsTheFormula) {
  for (const float scale : {1.0f, 1e-8f}) {
    for (int64_t size : {0, 1, 7, 100}) {
      const std::vector<float> start = Values(size, 1);
      const auto parameter = MakeParameter("p", FromVector(Shape{size}, start));
      AdamW optimizer({parameter.get()}, kOptions);
      Reference reference(start, kOptions);
      constexpr int kSteps = 20;
      for (int step = 0; step < kSteps; ++step) {
        std::vector<float> grad = Values(size, 10 + step);
        for (float& g : grad) g *= scale;
        parameter->set_grad(FromVector(Shape{size}, grad));
        ASSERT_TRUE(optimizer.Step().ok());
        reference.Step(grad);
      }
      const std::vector<float> values = parameter->data().ToVector<float>();
      for (int64_t i = 0; i < size; ++i) {
        EXPECT_NEAR(values[i], reference.values()[i],
                    Bound(kSteps, reference.values()[i]));
      }
      EXPECT_EQ(optimizer.state(0).step, kSteps);
    }
  }
}

TEST(AdamWTest, NeighboursShareStateAndResults) {
  const std::vector<Shape> shapes = {{3}, {0, 2}, {2, 2}, {1}};
  const std::vector<float> start = Values(8, 1);
  const Tensor flat_data = FromVector(Shape{8}, start);
  const Tensor flat_grad = FromVector(Shape{8}, Values(8, 2));
  std::vector<std::unique_ptr<Parameter>> together;
  std::vector<std::unique_ptr<Parameter>> alone;
  std::vector<Parameter*> together_list;
  std::vector<Parameter*> alone_list;
  int64_t offset = 0;
  for (const Shape& shape : shapes) {
    const auto part = [&](const Tensor& flat) {
      return MakeView(flat.storage(), offset, shape, ContiguousStrides(shape),
                      kFloat32);
    };
    together.push_back(MakeParameter("t", part(flat_data)));
    together.back()->set_grad(part(flat_grad));
    together_list.push_back(together.back().get());
    alone.push_back(MakeParameter(
        "a", FromVector(shape, part(flat_data).ToVector<float>())));
    alone.back()->set_grad(
        FromVector(shape, part(flat_grad).ToVector<float>()));
    alone_list.push_back(alone.back().get());
    offset += NumElements(shape);
  }
  AdamW joint(together_list, kOptions);
  AdamW separate(alone_list, kOptions);
  ASSERT_TRUE(joint.Step().ok());
  ASSERT_TRUE(separate.Step().ok());
  for (size_t i = 0; i < shapes.size(); ++i) {
    EXPECT_EQ(together[i]->data().ToVector<float>(),
              alone[i]->data().ToVector<float>());
    EXPECT_EQ(joint.state(i).exp_avg.storage(),
              joint.state(0).exp_avg.storage());
    EXPECT_EQ(joint.state(i).exp_avg.ToVector<float>(),
              separate.state(i).exp_avg.ToVector<float>());
    EXPECT_EQ(joint.state(i).exp_avg_sq.ToVector<float>(),
              separate.state(i).exp_avg_sq.ToVector<float>());
  }
}

// State and arithmetic are float32 for any dtype: a step equals that of a
// float32 parameter, rounded once. Neighbours of one dtype are updated
// together, as shards too.
TEST(AdamWTest, UpdatesOtherFloatsInFloat32) {
  for (const DType dtype : {kBFloat16, kFloat16, kFloat64}) {
    const Tensor flat = ToDType(FromVector(Shape{6}, Values(6, 1)), dtype);
    const Tensor flat_grad = ToDType(FromVector(Shape{6}, Values(6, 2)), dtype);
    std::vector<std::unique_ptr<Parameter>> stored;
    std::vector<std::unique_ptr<Parameter>> exact;
    std::vector<Parameter*> stored_list;
    std::vector<Parameter*> exact_list;
    for (const int64_t offset : {0, 2}) {
      const Shape sizes = {2 + offset};
      const auto part = [&](const Tensor& all) {
        return MakeView(all.storage(), offset, sizes, {1}, dtype);
      };
      auto parameter = std::make_unique<Parameter>(sizes, dtype, Initializer{});
      parameter->set_data(part(flat));
      parameter->set_grad(part(flat_grad));
      stored_list.push_back(parameter.get());
      stored.push_back(std::move(parameter));
      exact.push_back(MakeParameter("p", Clone(ToDType(part(flat), kFloat32))));
      exact.back()->set_grad(Clone(ToDType(part(flat_grad), kFloat32)));
      exact_list.push_back(exact.back().get());
    }
    AdamW optimizer(stored_list, kOptions);
    AdamW reference(exact_list, kOptions);
    for (int step = 0; step < 3; ++step) {
      ASSERT_TRUE(optimizer.Step().ok());
      ASSERT_TRUE(reference.Step().ok());
      for (size_t i = 0; i < stored.size(); ++i) {
        EXPECT_EQ(stored[i]->data().dtype(), dtype);
        const Tensor rounded = ToDType(exact[i]->data(), dtype);
        EXPECT_EQ(stored[i]->data().ToVector<double>(),
                  rounded.ToVector<double>())
            << Name(dtype) << " step " << step;
        EXPECT_EQ(optimizer.state(i).exp_avg.dtype(), kFloat32);
        EXPECT_EQ(optimizer.state(i).exp_avg_sq.ToVector<float>(),
                  reference.state(i).exp_avg_sq.ToVector<float>());
        // The next step starts from the stored value.
        const NoGrad no_grad;
        CopyInPlace(exact[i]->data(), rounded);
      }
    }
  }
}

// As in torch, each parameter counts its own steps, and its state starts with
// its first gradient.
TEST(AdamWTest, ParametersWithoutGradientsWait) {
  const Tensor flat = FromVector(Shape{4}, {1, 1, 1, 1});
  const auto half = [&](int64_t offset) {
    return MakeView(flat.storage(), offset, {2}, {1}, kFloat32);
  };
  const auto first = MakeParameter("first", half(0));
  const auto second = MakeParameter("second", half(2));
  AdamW optimizer({first.get(), second.get()}, kOptions);
  const Tensor grad = FromVector(Shape{2}, {1, -1});
  first->set_grad(grad);
  ASSERT_TRUE(optimizer.Step().ok());
  EXPECT_EQ(second->data().ToVector<float>(), (std::vector<float>{1, 1}));
  EXPECT_FALSE(optimizer.state(1).exp_avg.defined());
  const std::vector<float> after_one = first->data().ToVector<float>();

  second->set_grad(grad);
  ASSERT_TRUE(optimizer.Step().ok());
  EXPECT_EQ(second->data().ToVector<float>(), after_one);
  EXPECT_EQ(optimizer.FindState("first")->step, 2);
  EXPECT_EQ(optimizer.FindState("second")->step, 1);
  EXPECT_FALSE(optimizer.FindState("third").has_value());

  optimizer.ZeroGrad();
  EXPECT_FALSE(first->grad().defined());
  EXPECT_THAT(std::string(optimizer.Step().message()),
              HasSubstr("none of the 2 parameters (the first is first) has a "
                        "gradient"));
  EXPECT_EQ(optimizer.FindState("second")->step, 1);
}

TEST(AdamWTest, NeighboursMayHaveTakenDifferentSteps) {
  const Tensor data = FromVector(Shape{4}, {1, 1, 1, 1});
  const Tensor grad = FromVector(Shape{4}, {1, -1, 1, -1});
  const auto half = [](const Tensor& flat, int64_t offset) {
    return MakeView(flat.storage(), offset, {2}, {1}, kFloat32);
  };
  const auto first = MakeParameter("first", half(data, 0));
  const auto second = MakeParameter("second", half(data, 2));
  AdamW optimizer({first.get(), second.get()}, kOptions);
  // Only `first` has a gradient in the second step.
  std::vector<float> first_after_two;
  for (int step = 0; step < 3; ++step) {
    optimizer.ZeroGrad();
    first->set_grad(half(grad, 0));
    if (step != 1) second->set_grad(half(grad, 2));
    ASSERT_TRUE(optimizer.Step().ok());
    if (step == 1) first_after_two = first->data().ToVector<float>();
  }
  EXPECT_EQ(optimizer.state(0).step, 3);
  EXPECT_EQ(optimizer.state(1).step, 2);
  EXPECT_EQ(second->data().ToVector<float>(), first_after_two);
}

TEST(AdamWTest, TheLearningRateMayChange) {
  const auto parameter = MakeParameter("p", FromVector(Shape{1}, {2}));
  AdamW optimizer({parameter.get()}, kOptions);
  parameter->set_grad(FromVector(Shape{1}, {1}));
  optimizer.set_lr(0);
  ASSERT_TRUE(optimizer.Step().ok());
  EXPECT_EQ(parameter->data().ToVector<float>()[0], 2.0f);
  optimizer.set_lr(0.5);
  ASSERT_TRUE(optimizer.Step().ok());
  EXPECT_LT(parameter->data().ToVector<float>()[0], 1.5f);
}

TEST(AdamWTest, LeasesStateAsOptimizerState) {
  RunRanks(1, [](World& world) {
    const auto parameter = MakeParameter("p", Zeros({100}));
    AdamW optimizer({parameter.get()}, kOptions);
    const auto bytes = [&] {
      return world.context().allocator().stats().current[static_cast<int>(
          MemoryClass::kOptimizerState)];
    };
    CH_EXPECT_EQ(bytes(), 0);
    parameter->set_grad(Ones({100}));
    CH_RETURN_IF_ERROR(optimizer.Step());
    CH_EXPECT_EQ(bytes(), 2 * 100 * 4);
    return optimizer.Step();
  });
}

TEST(AdamWTest, UpdatesShards) {
  for (const int64_t rows : {1, 5}) {
    const std::vector<float> start = Values(rows * 3, 1);
    const std::vector<float> grad = Values(rows * 3, 2);
    const Shape sizes = {rows, 3};
    const auto whole = MakeParameter("w", FromVector(sizes, start));
    whole->set_grad(FromVector(sizes, grad));
    AdamW single({whole.get()}, kOptions);
    ASSERT_TRUE(single.Step().ok());
    const std::vector<float> expected = whole->data().ToVector<float>();

    OnMesh({{"fsdp", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
      const Layout layout =
          Layout::Replicated(mesh.layout(), 2).WithShard(0, 0);
      const Box box = layout.LocalBox(sizes, *mesh.coordinate());
      const auto shard = [&](const std::vector<float>& values) {
        const auto begin = values.begin() + box.offsets[0] * 3;
        return MakeDTensor(FromVector(box.sizes, {begin, begin + box.numel()}),
                           mesh, layout, sizes);
      };
      const auto parameter = MakeParameter("w", shard(start));
      parameter->set_grad(shard(grad));
      AdamW optimizer({parameter.get()}, kOptions);
      CH_RETURN_IF_ERROR(optimizer.Step());
      const std::vector<float> values =
          LocalTensor(parameter->data()).ToVector<float>();
      CH_EXPECT_EQ(static_cast<int64_t>(values.size()), box.numel());
      for (size_t i = 0; i < values.size(); ++i) {
        CH_EXPECT_EQ(values[i], expected[box.offsets[0] * 3 + i]);
      }
      CH_EXPECT_EQ(LayoutOf(optimizer.state(0).exp_avg), layout);
      CH_EXPECT_EQ(optimizer.state(0).exp_avg_sq.sizes(), sizes);
      return absl::OkStatus();
    });
  }
}

TEST(AdamWTest, NeighboursBeginWithAnEmptyOne) {
  const auto storage = Zeros({2}).storage();
  const auto gradients = Ones({2}).storage();
  const auto part = [](const std::shared_ptr<Storage>& all, int64_t count) {
    return MakeView(all, 0, {count}, {1}, kFloat32);
  };
  const auto empty = MakeParameter("empty", part(storage, 0));
  const auto whole = MakeParameter("whole", part(storage, 2));
  empty->set_grad(part(gradients, 0));
  whole->set_grad(part(gradients, 2));
  AdamW optimizer({empty.get(), whole.get()}, {.lr = 1, .weight_decay = 0});
  ASSERT_TRUE(optimizer.Step().ok());
  for (const float value : whole->data().ToVector<float>()) {
    EXPECT_NEAR(value, -1, 1e-6);
  }
  EXPECT_EQ(optimizer.state(0).step, 1);
}

TEST(AdamWTest, AFailedCollectiveSurfaces) {
  const absl::Status status = StatusOfRanks(1, [](World& world) {
    const auto parameter = MakeParameter("p", Ones({2}));
    parameter->set_grad(Ones({2}));
    AdamW optimizer({parameter.get()}, kOptions);
    world.context().Poison(absl::UnavailableError("rank 3 is gone"));
    const absl::Status step = optimizer.Step();
    CH_EXPECT_THAT(std::string(step.message()), HasSubstr("rank 3 is gone"));
    CH_EXPECT_EQ(optimizer.state(0).step, 0);
    return absl::OkStatus();
  });
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 3 is gone"));
}

TEST(AdamWTest, ADryRunAccountsTheSame) {
  const absl::Status status = RunFake({}, [](World& world) {
    const auto parameter = MakeParameter("p", Zeros({100}));
    parameter->set_grad(Ones({100}));
    AdamW optimizer({parameter.get()}, kOptions);
    CH_RETURN_IF_ERROR(optimizer.Step());
    EXPECT_EQ(world.context().allocator().stats().current[static_cast<int>(
                  MemoryClass::kOptimizerState)],
              2 * 100 * 4);
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(AdamWTest, NamesAnOptionThatMakesNoUpdate) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  double AdamWOptions::*const members[] = {
      &AdamWOptions::lr, &AdamWOptions::beta1, &AdamWOptions::beta2,
      &AdamWOptions::eps, &AdamWOptions::weight_decay};
  const char* const names[] = {"lr", "beta1", "beta2", "eps", "weight_decay"};
  for (int i = 0; i < 5; ++i) {
    for (const double value : {nan, -1.0, infinity}) {
      AdamWOptions options;
      options.*members[i] = value;
      const auto parameter = MakeParameter("p", FromVector(Shape{1}, {1}));
      parameter->set_grad(FromVector(Shape{1}, {1}));
      const absl::Status status = AdamW({parameter.get()}, options).Step();
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << names[i] << value;
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(absl::StrCat("AdamW: ", names[i], " ")));
      EXPECT_EQ(parameter->data().ToVector<float>()[0], 1.0f);
    }
  }
  const auto parameter = MakeParameter("p", FromVector(Shape{1}, {1}));
  parameter->set_grad(FromVector(Shape{1}, {1}));
  AdamW optimizer({parameter.get()}, {.lr = 0, .beta1 = 0, .beta2 = 0});
  EXPECT_TRUE(optimizer.Step().ok());
  optimizer.set_lr(nan);
  EXPECT_TRUE(absl::IsInvalidArgument(optimizer.Step()));
}

// Equal options share an update. Each parameter gets the result of a separate
// optimizer with its group's options.
std::vector<float> Floats(const Tensor& t) { return t.ToVector<float>(); }

TEST(AdamWTest, StateIsKeyedByName) {
  const Tensor grad = FromVector(Shape{3}, Values(3, 5));
  const auto a = MakeParameter("a", FromVector(Shape{3}, Values(3, 1)));
  const auto b = MakeParameter("b", FromVector(Shape{3}, Values(3, 2)));
  const auto idle = MakeParameter("idle", Ones({3}));
  AdamW optimizer({a.get(), b.get(), idle.get()}, kOptions);
  for (int step = 0; step < 3; ++step) {
    a->set_grad(grad);
    if (step > 0) b->set_grad(grad);
    ASSERT_TRUE(optimizer.Step().ok());
  }
  const absl::StatusOr<StateDict> kept = optimizer.State();
  ASSERT_TRUE(kept.ok());
  // A parameter without updates has no moments.
  EXPECT_THAT(NamesOf(*kept),
              ElementsAre("a.exp_avg", "a.exp_avg_sq", "a.step", "b.exp_avg",
                          "b.exp_avg_sq", "b.step", "idle.step"));
  EXPECT_EQ(kept->Get<int64_t>("idle.step").value(), 0);
  EXPECT_EQ(kept->Get<int64_t>("b.step").value(), 2);

  const auto a2 = MakeParameter("a", Clone(a->data().Detach()));
  const auto b2 = MakeParameter("b", Clone(b->data().Detach()));
  const auto idle2 = MakeParameter("idle", Ones({3}));
  AdamW again({idle2.get(), b2.get(), a2.get()}, kOptions,
              {{.has = NameMatches("b"), .weight_decay = 0.1}});
  // This optimizer has taken other steps.
  idle2->set_grad(grad);
  ASSERT_TRUE(again.Step().ok());
  const absl::StatusOr<StateDict> to_fill = again.StateToFill(NamesOf(*kept));
  ASSERT_TRUE(to_fill.ok()) << to_fill.status();
  StateDict filled;
  for (const auto& [name, value] : to_fill->entries()) {
    const StateValue& from = *kept->Find(name);
    if (const auto* tensor = std::get_if<Tensor>(&value)) {
      CopyInPlace(*tensor, std::get<Tensor>(from));
      ASSERT_TRUE(filled.Add(name, *tensor).ok());
    } else {
      ASSERT_TRUE(filled.Add(name, from).ok());
    }
  }
  ASSERT_TRUE(again.Restore(filled).ok());
  EXPECT_FALSE(again.FindState("idle")->exp_avg.defined());
  EXPECT_EQ(again.FindState("idle")->step, 0);

  for (Parameter* p : {a.get(), b.get(), a2.get(), b2.get()}) p->set_grad(grad);
  idle2->set_grad(Tensor());
  ASSERT_TRUE(optimizer.Step().ok());
  ASSERT_TRUE(again.Step().ok());
  EXPECT_EQ(Floats(a2->data()), Floats(a->data()));
  EXPECT_EQ(Floats(b2->data()), Floats(b->data()));
  EXPECT_EQ(Floats(again.FindState("b")->exp_avg_sq),
            Floats(optimizer.FindState("b")->exp_avg_sq));
}

TEST(AdamWTest, RefusesAStateThatIsNotItsOwn) {
  const auto a = MakeParameter("a", Ones({2}));
  const auto unnamed = MakeParameter("", Ones({2}));
  AdamW optimizer({a.get()}, kOptions);
  const auto message = [](const absl::Status& status) {
    return std::string(status.message());
  };
  EXPECT_THAT(
      message(
          optimizer.StateToFill({"a.exp_avg", "a.step", "b.step"}).status()),
      HasSubstr("this AdamW: 1 missing (a.exp_avg_sq), 1 unexpected (b.step)"));
  const std::vector<std::string> names = {"a.exp_avg", "a.exp_avg_sq",
                                          "a.step"};
  StateDict state = optimizer.StateToFill(names).value();
  EXPECT_THAT(message(optimizer.Restore(state)),
              HasSubstr("\"a.step\" is 0, and 2 of 2 other entries"));
  *state.Find("a.exp_avg") = Ones({2});
  *state.Find("a.step") = int64_t{1};
  EXPECT_THAT(message(optimizer.Restore(state)),
              HasSubstr("\"a.exp_avg\" of the state is not the tensor"));
  EXPECT_EQ(optimizer.state(0).step, 0);
  // Missing moments of an updated parameter are not replaced by zeros.
  StateDict steps = optimizer.StateToFill({"a.step"}).value();
  *steps.Find("a.step") = int64_t{3};
  EXPECT_THAT(message(optimizer.Restore(steps)),
              HasSubstr("\"a.step\" is 3, and 0 of 2 other entries"));
  // A missing entry does not mean that there were no updates.
  EXPECT_THAT(message(optimizer.StateToFill({}).status()),
              HasSubstr("this AdamW: 1 missing (a.step)"));
  StateDifferences differences;
  AdamW other({a.get()}, kOptions, {},
              {.allow_missing = true,
               .allow_unexpected = true,
               .differences = &differences});
  EXPECT_EQ(other.StateToFill({"b.step"})->size(), 0);
  EXPECT_THAT(differences.missing, ElementsAre("a.step"));
  EXPECT_THAT(differences.unexpected, ElementsAre("b.step"));
  AdamW strict({a.get()}, kOptions, {},
               {.allow_missing = true, .differences = &differences});
  differences = {};
  EXPECT_THAT(message(strict.StateToFill({"b.step"}).status()),
              HasSubstr("1 unexpected (b.step)"));
  EXPECT_THAT(differences.missing, ElementsAre("a.step"));
  EXPECT_THAT(differences.unexpected, ElementsAre("b.step"));
  EXPECT_THAT(message(other.StateToFill({"a.exp_avg"}).status()),
              HasSubstr("2 missing (a.exp_avg_sq, a.step)"));
  AdamW nameless({unnamed.get()}, kOptions);
  EXPECT_THAT(message(nameless.StateToFill({}).status()),
              HasSubstr("has none"));
}

}  // namespace
}  // namespace crosshatch::nn
