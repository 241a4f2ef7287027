// SPDX-License-Identifier: Apache-2.0

// Compares Sgd, Lion and Ema with references in double. nn/optim/adamw_test.cc
// tests what all optimizers share, tests/fsdp_optimizers_test.cc tests them
// under FSDP and TP.

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/name_pattern.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/nn/optim/ema.h"
#include "crosshatch/nn/optim/lion.h"
#include "crosshatch/nn/optim/optim_testutil.h"
#include "crosshatch/nn/optim/sgd.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kSteps = 20;
constexpr int64_t kSize = 37;
constexpr int64_t kLeastInt64 = std::numeric_limits<int64_t>::min();
constexpr int64_t kMostInt64 = std::numeric_limits<int64_t>::max();
/// The maximum step count of a state.
constexpr int64_t kMostSteps = kMostInt64 / 2;

std::vector<float> Floats(const Tensor& t) { return t.ToVector<float>(); }

/// Runs `optimizer` on its one `parameter`, and `reference`(p, m, g, step), on
/// the same gradients. A step rounds the parameter and its update, of at most
/// `lr` * `most`, some ten times.
template <typename F>
void ExpectFollows(Optimizer& optimizer, Parameter& parameter, F reference,
                   double lr, double most) {
  std::vector<double> p;
  for (float v : parameter.data().ToVector<float>()) p.push_back(v);
  std::vector<double> m(p.size());
  for (int step = 1; step <= kSteps; ++step) {
    const std::vector<float> grad = Values(kSize, step);
    parameter.set_grad(FromValues<float>({kSize}, grad));
    ASSERT_TRUE(optimizer.Step().ok());
    for (size_t i = 0; i < p.size(); ++i) {
      reference(p[i], m[i], double{grad[i]}, step);
    }
  }
  const std::vector<float> values = parameter.data().ToVector<float>();
  for (size_t i = 0; i < p.size(); ++i) {
    EXPECT_NEAR(values[i], p[i],
                kSteps * 0x1p-24 * (3 * std::abs(p[i]) + 12 * lr * most))
        << i;
  }
}

TEST(SgdTest, FollowsTheFormula) {
  const SgdOptions cases[] = {
      {.lr = 0.1},
      {.lr = 0.1, .weight_decay = 0.2},
      {.lr = 0.1, .momentum = 0.9},
      {.lr = 0.1, .momentum = 0.5, .dampening = 0.3, .weight_decay = 0.1},
      {.lr = 0.1, .momentum = 0.8, .weight_decay = 0.1, .nesterov = true},
  };
  for (const SgdOptions& o : cases) {
    const auto parameter = MakeParameter("p", Values(kSize, 0));
    Sgd optimizer({parameter.get()}, o);
    EXPECT_EQ(optimizer.slots().size(), o.momentum == 0 ? 0u : 1u);
    // The sum has at most 1 / (1 - momentum) gradients of size up to 1.3.
    ExpectFollows(
        optimizer, *parameter,
        [&o](double& p, double& m, double g, int step) {
          g += o.weight_decay * p;
          m = step == 1 ? g : o.momentum * m + (1 - o.dampening) * g;
          p -= o.lr * (o.momentum == 0 ? g
                       : o.nesterov    ? g + o.momentum * m
                                       : m);
        },
        o.lr, 2.6 / (1 - o.momentum) / (1 - o.momentum));
  }
}

// No element of the mean is so near zero that rounding flips its sign, which
// would be a difference of 2 lr.
TEST(LionTest, FollowsTheFormula) {
  const LionOptions o = {
      .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1};
  const auto parameter = MakeParameter("p", Values(kSize, 0));
  Lion optimizer({parameter.get()}, o);
  ExpectFollows(
      optimizer, *parameter,
      [&o](double& p, double& m, double g, int /*step*/) {
        const double along = o.beta1 * m + (1 - o.beta1) * g;
        p = p * (1 - o.lr * o.weight_decay) -
            o.lr * ((along > 0) - (along < 0));
        m = o.beta2 * m + (1 - o.beta2) * g;
      },
      o.lr, 1);
  EXPECT_EQ(optimizer.StateOf(0).step, kSteps);
}

TEST(OptimizersTest, UpdateOtherDTypesInFloat32) {
  std::vector<float> exact;
  for (const DType dtype : {kFloat32, kBFloat16}) {
    Parameter p({kSize}, dtype, Initializer{});
    p.set_name("p");
    p.set_data(ToDType(FromValues<float>({kSize}, Values(kSize, 0)), dtype));
    p.set_grad(ToDType(FromValues<float>({kSize}, Values(kSize, 1)), dtype));
    Sgd optimizer({&p}, {.lr = 0.1, .momentum = 0.9});
    ASSERT_TRUE(optimizer.Step().ok());
    EXPECT_EQ(optimizer.StateOf(0).tensors[0].dtype(), kFloat32);
    EXPECT_EQ(p.data().dtype(), dtype);
    const std::vector<float> values = p.data().ToVector<float>();
    if (dtype == kFloat32) exact = values;
    // Start, gradient and result are rounded to 8 bits each.
    for (size_t i = 0; i < exact.size(); ++i) {
      EXPECT_NEAR(values[i], exact[i], 0x1p-8);
    }
  }
}

TEST(OptimizersTest, HaveGroups) {
  const auto weight = MakeParameter("a.weight", std::vector<float>{1});
  const auto bias = MakeParameter("a.bias", std::vector<float>{1});
  const auto step = [&](Optimizer& optimizer) {
    for (Parameter* p : {weight.get(), bias.get()}) {
      p->set_data(Ones({1}));
      p->set_grad(Ones({1}));
    }
    EXPECT_TRUE(optimizer.Step().ok());
    return std::vector<float>{weight->data().ToVector<float>()[0],
                              bias->data().ToVector<float>()[0]};
  };
  Sgd sgd(
      {weight.get(), bias.get()}, {.lr = 0.5, .weight_decay = 0.5},
      {{.has = NameMatches("**.bias"), .lr_scale = 0.5, .weight_decay = 0}});
  EXPECT_THAT(step(sgd), ElementsAre(0.25f, 0.75f));
  sgd.set_lr(0.25);
  EXPECT_THAT(step(sgd), ElementsAre(0.625f, 0.875f));
  EXPECT_EQ(sgd.OptionsOf(1)->lr, 0.125);
  Lion lion({weight.get(), bias.get()}, {.lr = 0.5, .weight_decay = 0.5},
            {{.has = NameMatches("**.bias"), .weight_decay = 0}});
  EXPECT_THAT(step(lion), ElementsAre(0.25f, 0.5f));
}

TEST(OptimizersTest, NameOptionsThatMakeNoUpdate) {
  const auto p = MakeParameter("p", std::vector<float>{1});
  p->set_grad(Ones({1}));
  const auto message_of = [](Optimizer&& optimizer) {
    const absl::Status status = optimizer.Step();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(message_of(Sgd({p.get()}, {.momentum = 1})),
            "Sgd: momentum is at least 0 and below 1, not 1");
  EXPECT_THAT(message_of(Sgd({p.get()}, {.nesterov = true})),
              HasSubstr("nesterov goes with a momentum above 0"));
  EXPECT_THAT(
      message_of(Lion({p.get()}, {}, {{.has = NameMatches("p"), .beta2 = 2}})),
      HasSubstr("Lion: group 0's beta2 is at least 0 and below 1"));
}

// On one rank the gradient is certainly missing. Of several ranks, one may have
// none and the others do not notice.
TEST(OptimizersTest, WarnOnceOfNoGradientOnARankOfSeveral) {
  CH_SKIP_ON(TestEngine::kMpi, "captures the output of one process");
  const auto step_twice = [](World& world) -> absl::Status {
    const auto w = MakeParameter("w", Values(kSize, 1));
    const auto v = MakeParameter("v", Values(kSize, 2));
    Sgd optimizer({w.get(), v.get()}, {.lr = 0.1});
    if (world.rank() == 1) v->data().set_grad(Ones({kSize}));
    CH_RETURN_IF_ERROR(optimizer.Step());
    return optimizer.Step();
  };
  ::testing::internal::CaptureStderr();
  RunRanks(2, step_twice);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "warning: rank 0: Sgd::Step: none of the 2 parameters (the first "
            "is w) has a gradient: call Backward before the step, ZeroGrad "
            "after it, and make the optimizer of the parameters that the model "
            "has now\n");
  const absl::Status alone = StatusOfRanks(1, step_twice);
  EXPECT_EQ(alone.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(alone.message()),
              HasSubstr("none of the 2 parameters (the first is w)"));
}

TEST(OptimizersDeathTest, NameMissingParameters) {
  const auto weight = MakeParameter("weight", std::vector<float>{1});
  EXPECT_DEATH(Sgd({weight.get(), nullptr}, {}),
               HasSubstr("Sgd: parameter 1 of 2 is null"));
  EXPECT_DEATH(Ema({nullptr}, {}), HasSubstr("Ema: parameter 0 of 1 is null"));
  const auto bias = MakeParameter("bias", std::vector<float>{1});
  EXPECT_DEATH(Sgd({weight.get(), bias.get(), weight.get()}, {}),
               HasSubstr("Sgd: parameter weight is listed twice, as 0 and 2"));
  EXPECT_DEATH(Ema({bias.get(), bias.get()}, {}),
               HasSubstr("Ema: parameter bias is listed twice"));
  Sgd sgd({weight.get()}, {});
  EXPECT_DEATH((void)sgd.StateOf(1),
               HasSubstr("Sgd: the state of parameter 1 of 1"));
  EXPECT_DEATH((void)sgd.OptionsOf(2),
               HasSubstr("Sgd: the group of parameter 2 of 1"));
  const Ema ema({weight.get()}, {});
  EXPECT_DEATH((void)ema.average(1),
               HasSubstr("Ema: the average of parameter 1 of 1"));
}

// A pipeline stage may have no parameters. On a single rank an empty list is a
// mistake.
TEST(OptimizersTest, MayHaveNoParametersOnARankOfSeveral) {
  const auto step_and_swap = [](World&) -> absl::Status {
    Sgd sgd({}, {}, {{.has = NameMatches("**.bias")}});
    CH_RETURN_IF_ERROR(sgd.Step());
    sgd.ZeroGrad();
    CH_ASSIGN_OR_RETURN(const StateDict none, sgd.State());
    CH_EXPECT_TRUE(none.empty());
    Ema ema({}, {});
    CH_RETURN_IF_ERROR(ema.Update());
    CH_RETURN_IF_ERROR(ema.SwapIn());
    CH_EXPECT_TRUE(ema.swapped_in());
    CH_RETURN_IF_ERROR(ema.SwapOut());
    CH_ASSIGN_OR_RETURN(const StateDict kept, ema.State());
    Ema resumed({}, {});
    CH_RETURN_IF_ERROR(resumed.StateToFill(NamesOf(kept)).status());
    return resumed.Restore(kept);
  };
  RunRanks(2, step_and_swap);
  const absl::Status alone = StatusOfRanks(1, step_and_swap);
  EXPECT_EQ(alone.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(alone.message()),
              HasSubstr("Sgd::Step: the list of parameters is empty"));
}

TEST(OptimizersTest, OutliveTheirModel) {
  auto model = std::make_unique<Linear>(3, 2);
  ASSERT_TRUE(model->Materialize({.seed = 1}).ok());
  ASSERT_TRUE(Backward(Sum(model->Forward(Ones({4, 3})))).ok());
  AdamW adamw(model->Parameters(), {});
  Sgd sgd(model->Parameters(), {.lr = 1});
  Lion lion(model->Parameters(), {});
  Ema ema(model->Parameters(), {.decay = 0});
  ASSERT_TRUE(ema.Update().ok());
  ASSERT_TRUE(ema.SwapIn().ok());
  const auto before = model->weight()->data().ToVector<float>();
  model.reset();
  EXPECT_TRUE(absl::IsFailedPrecondition(sgd.Step()));
  ASSERT_TRUE(ema.SwapOut().ok());
  ASSERT_TRUE(sgd.Step().ok());
  std::vector<float> after = sgd.parameters()[0]->data().ToVector<float>();
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i], before[i] - 4);
  }
  ASSERT_TRUE(adamw.Step().ok());
  ASSERT_TRUE(lion.Step().ok());
  ASSERT_TRUE(ema.Update().ok());
  for (Stateful* each : std::vector<Stateful*>{&adamw, &sgd, &lion, &ema}) {
    EXPECT_TRUE(each->State().ok());
  }
}

TEST(OptimizersTest, NameGroupsWithoutAPredicate) {
  const auto weight = MakeParameter("weight", std::vector<float>{1});
  weight->set_grad(Ones({1}));
  Sgd sgd({weight.get()}, {}, {{.has = nullptr, .lr_scale = 2}});
  EXPECT_THAT(
      std::string(sgd.Step().message()),
      HasSubstr("Sgd: group 0 of 1 has no predicate for its parameters"));
}

TEST(OptimizersTest, AreStateful) {
  const auto check = [](auto make) {
    const auto stopped = MakeParameter("p", Values(kSize, 0));
    const auto whole = MakeParameter("p", Values(kSize, 0));
    const auto step = [](Optimizer& optimizer, Parameter& p, int i) {
      p.set_grad(FromValues<float>({kSize}, Values(kSize, i)));
      ASSERT_TRUE(optimizer.Step().ok());
    };
    const auto first = make(stopped.get());
    const auto other = make(whole.get());
    for (int i = 1; i < 3; ++i) {
      step(*first, *stopped, i);
      step(*other, *whole, i);
    }
    const absl::StatusOr<StateDict> kept = first->State();
    ASSERT_TRUE(kept.ok()) << kept.status();
    EXPECT_EQ(kept->size(), 2u);
    const auto again = make(stopped.get());
    absl::StatusOr<StateDict> fill = again->StateToFill(NamesOf(*kept));
    ASSERT_TRUE(fill.ok()) << fill.status();
    for (const auto& [name, value] : kept->entries()) {
      if (const auto* from = std::get_if<Tensor>(&value)) {
        CopyInPlace(std::get<Tensor>(*fill->Find(name)), *from);
      } else {
        *fill->Find(name) = value;
      }
    }
    ASSERT_TRUE(again->Restore(*fill).ok());
    EXPECT_EQ(again->StateOf(0).step, 2);
    // Repeat by hand.
    const auto by_hand_parameter = MakeParameter("p", Values(kSize, 9));
    const auto by_hand = make(by_hand_parameter.get());
    ASSERT_TRUE(by_hand->SetState("p", first->StateOf(0)).ok());
    EXPECT_EQ(by_hand->StateOf(0).step, 2);
    EXPECT_EQ(Floats(by_hand->StateOf(0).tensors[0]),
              Floats(first->StateOf(0).tensors[0]));
    step(*again, *stopped, 3);
    step(*other, *whole, 3);
    EXPECT_EQ(stopped->data().ToVector<float>(),
              whole->data().ToVector<float>());
  };
  check([](Parameter* p) {
    return std::make_unique<Sgd>(std::vector<Parameter*>{p},
                                 SgdOptions{.momentum = 0.9, .dampening = 0.5});
  });
  check([](Parameter* p) {
    return std::make_unique<Lion>(std::vector<Parameter*>{p}, LionOptions{});
  });
}

TEST(OptimizersTest, TakeNoStateThatDoesNotFit) {
  const auto p = MakeParameter("p", std::vector<float>{1, 2});
  Lion lion({p.get()}, {});
  const OptimizerState kept = {.step = 3, .tensors = {Full({2}, 5)}};
  ASSERT_TRUE(lion.SetState("p", kept).ok());
  const auto expect_refused = [&](const std::string& name, int64_t step,
                                  const std::vector<Tensor>& tensors,
                                  const std::string& why) {
    const OptimizerState state = {.step = step,
                                  .tensors = {tensors.begin(), tensors.end()}};
    EXPECT_THAT(std::string(lion.SetState(name, state).message()),
                HasSubstr(why));
    EXPECT_EQ(lion.StateOf(0).step, 3) << why;
    EXPECT_THAT(Floats(lion.StateOf(0).tensors[0]), ElementsAre(5, 5)) << why;
  };
  const Tensor fits = Ones({2});
  for (const char* name : {"q", "", "p.exp_avg", "P"}) {
    expect_refused(name, 1, {fits},
                   std::string("Lion has no parameter \"") + name + "\"");
  }
  for (const int64_t step : {int64_t{0}, int64_t{-1}, kLeastInt64}) {
    expect_refused("p", step, {fits}, "after an update it is 1 or more");
  }
  for (const int64_t step : {kMostSteps + 1, kMostInt64}) {
    expect_refused("p", step, {fits}, "which is out of range");
  }
  expect_refused("p", 1, {}, "must have 1 tensors, not 0");
  expect_refused("p", 1, {fits, fits}, "must have 1 tensors, not 2");
  expect_refused("p", 1, {Tensor()},
                 "must be float32 with the parameter's sizes and layout, "
                 "f32[2] on cpu, not an undefined tensor");
  expect_refused("p", 1, {Ones({3})}, "f32[2] on cpu, not f32[3] on cpu");
  expect_refused("p", 1, {Ones({2, 1})}, "not f32[2, 1] on cpu");
  expect_refused("p", 1, {Ones({0})}, "not f32[0] on cpu");
  expect_refused("p", 1, {ToDType(fits, kBFloat16)}, "not bf16[2] on cpu");
  expect_refused("p", 1, {ToDType(fits, kInt64)}, "not i64[2] on cpu");
  // One more step is possible at the maximum.
  ASSERT_TRUE(lion.SetState("p", {.step = kMostSteps, .tensors = {fits}}).ok());
  p->set_grad(Ones({2}));
  ASSERT_TRUE(lion.Step().ok());
  EXPECT_EQ(lion.StateOf(0).step, kMostSteps + 1);
}

TEST(OptimizersTest, RefuseStateOfAnotherLayout) {
  OnMesh({{"fsdp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    const Layout whole = Layout::Replicated(mesh.layout(), 1);
    const Layout rows = whole.WithShard(0, 0);
    const auto p = MakeParameter("p", DistributeTensor(Ones({4}), mesh, rows));
    Sgd sgd({p.get()}, {.momentum = 0.5});
    for (const Tensor& other :
         {Ones({4}), Ones({2}), DistributeTensor(Ones({4}), mesh, whole),
          DistributeTensor(Ones({2}), mesh, rows)}) {
      const absl::Status status =
          sgd.SetState("p", {.step = 1, .tensors = {other}});
      CH_EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      CH_EXPECT_THAT(std::string(status.message()),
                     HasSubstr("sizes and layout, f32[4]|[S(0)]"));
      CH_EXPECT_EQ(sgd.StateOf(0).step, 0);
    }
    const Tensor fits = DistributeTensor(Full({4}, 7), mesh, rows);
    CH_RETURN_IF_ERROR(sgd.SetState("p", {.step = 1, .tensors = {fits}}));
    CH_EXPECT_EQ(Floats(FullTensor(sgd.StateOf(0).tensors[0])),
                 (std::vector<float>{7, 7, 7, 7}));
    return absl::OkStatus();
  });
}

TEST(OptimizersTest, RefuseStepsOutOfRange) {
  const auto p = MakeParameter("p", std::vector<float>{1, 2});
  Lion lion({p.get()}, {});
  ASSERT_TRUE(lion.SetState("p", {.step = 3, .tensors = {Ones({2})}}).ok());
  StateDict state = lion.State().value();
  const auto expect_refused = [&](const StateValue& step,
                                  const std::string& why) {
    *state.Find("p.step") = step;
    EXPECT_THAT(std::string(lion.Restore(state).message()), HasSubstr(why));
    EXPECT_EQ(lion.StateOf(0).step, 3) << why;
  };
  expect_refused(std::nan(""), "\"p.step\"");
  expect_refused(3.0, "\"p.step\"");
  expect_refused(std::string("3"), "\"p.step\"");
  expect_refused(Ones({1}), "\"p.step\"");
  expect_refused(int64_t{-1}, "\"p.step\" is -1, and 1 of 1 other entries");
  expect_refused(int64_t{0}, "\"p.step\" is 0, and 1 of 1 other entries");
  expect_refused(kMostSteps + 1, "which is out of range");
  expect_refused(kMostInt64, "which is out of range");
}

TEST(EmaTest, FollowsTheFormula) {
  const auto p = MakeParameter("p", Values(kSize, 0));
  Ema ema({p.get()}, {.decay = 0.9});
  EXPECT_TRUE(absl::IsFailedPrecondition(ema.SwapIn()));
  ASSERT_TRUE(ema.Update().ok());
  std::vector<double> average;
  for (float v : Values(kSize, 0)) average.push_back(v);
  for (int step = 1; step <= kSteps; ++step) {
    const std::vector<float> values = Values(kSize, step);
    p->set_data(FromValues<float>({kSize}, values));
    ASSERT_TRUE(ema.Update().ok());
    for (size_t i = 0; i < average.size(); ++i) {
      average[i] = 0.9 * average[i] + 0.1 * values[i];
    }
  }
  const std::vector<float> last = p->data().ToVector<float>();
  ASSERT_TRUE(ema.SwapIn().ok());
  EXPECT_TRUE(ema.swapped_in());
  EXPECT_TRUE(absl::IsFailedPrecondition(ema.Update()));
  EXPECT_TRUE(absl::IsFailedPrecondition(ema.State().status()));
  const std::vector<float> swapped = p->data().ToVector<float>();
  for (size_t i = 0; i < average.size(); ++i) {
    // Old errors fade by 0.9 a step, new ones are three roundings of 1.
    EXPECT_NEAR(swapped[i], average[i], 10 * 3 * 0x1p-24);
  }
  ASSERT_TRUE(ema.SwapOut().ok());
  EXPECT_EQ(p->data().ToVector<float>(), last);
  EXPECT_TRUE(absl::IsFailedPrecondition(ema.SwapOut()));
}

TEST(EmaTest, RefusesAStepWhileSwappedIn) {
  const auto p = MakeParameter("p", Values(kSize, 0));
  Sgd sgd({p.get()}, {.lr = 1});
  Ema ema({p.get()}, {.decay = 0.9});
  ASSERT_TRUE(ema.Update().ok());
  ASSERT_TRUE(ema.SwapIn().ok());
  p->set_grad(Ones({kSize}));
  const absl::Status status = sgd.Step();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("Step: parameter p holds its average"));
  EXPECT_EQ(sgd.StateOf(0).step, 0);
  ASSERT_TRUE(ema.SwapOut().ok());
  EXPECT_TRUE(sgd.Step().ok());
  {
    Ema other({p.get()}, {.decay = 0.9});
    ASSERT_TRUE(other.Update().ok());
    ASSERT_TRUE(other.SwapIn().ok());
  }
  EXPECT_TRUE(sgd.Step().ok());
}

TEST(EmaTest, KeepsParametersOfOtherDTypes) {
  Parameter p({kSize}, kBFloat16, Initializer{});
  p.set_name("p");
  p.set_data(ToDType(FromValues<float>({kSize}, Values(kSize, 0)), kBFloat16));
  Ema ema({&p}, {.decay = 0.5});
  ASSERT_TRUE(ema.Update().ok());
  p.set_data(ToDType(FromValues<float>({kSize}, Values(kSize, 1)), kBFloat16));
  ASSERT_TRUE(ema.Update().ok());
  EXPECT_EQ(ema.average(0).dtype(), kFloat32);
  const std::vector<float> before = p.data().ToVector<float>();
  ASSERT_TRUE(ema.SwapIn().ok());
  EXPECT_EQ(p.data().ToVector<float>(),
            ToDType(ema.average(0), kBFloat16).ToVector<float>());
  ASSERT_TRUE(ema.SwapOut().ok());
  EXPECT_EQ(p.data().ToVector<float>(), before);
}

TEST(EmaTest, IsStateful) {
  const auto p = MakeParameter("p", Values(kSize, 0));
  Ema ema({p.get()}, {.decay = 0.5});
  const absl::StatusOr<StateDict> fresh = ema.State();
  ASSERT_TRUE(fresh.ok());
  EXPECT_THAT(NamesOf(*fresh), ElementsAre("updates"));
  ASSERT_TRUE(ema.Update().ok());
  const absl::StatusOr<StateDict> kept = ema.State();
  ASSERT_TRUE(kept.ok());
  EXPECT_THAT(NamesOf(*kept), ElementsAre("p.average", "updates"));
  const auto other = MakeParameter("p", Values(kSize, 5));
  Ema again({other.get()}, {.decay = 0.5});
  const auto refusal = [&](const std::vector<std::string>& saved) {
    return std::string(again.StateToFill(saved).status().message());
  };
  EXPECT_THAT(refusal({"q.average", "updates"}),
              HasSubstr("this Ema: 1 unexpected (q.average)"));
  EXPECT_THAT(refusal({"p.average"}),
              HasSubstr("this Ema: 1 missing (updates)"));
  // A state without averages is not that of a fresh Ema.
  EXPECT_THAT(refusal({}), HasSubstr("this Ema: 1 missing (updates)"));
  const absl::StatusOr<StateDict> fill = again.StateToFill(NamesOf(*kept));
  ASSERT_TRUE(fill.ok());
  CopyInPlace(std::get<Tensor>(*fill->Find("p.average")), ema.average(0));
  EXPECT_THAT(std::string(again.Restore(*fill).message()),
              HasSubstr("\"updates\" is 0, and averages were kept"));
  StateDict filled = *fill;
  *filled.Find("updates") = int64_t{1};
  ASSERT_TRUE(again.Restore(filled).ok());
  EXPECT_EQ(again.average(0).ToVector<float>(), Values(kSize, 0));
  // A state without updates is restored as such.
  const absl::StatusOr<StateDict> none = again.StateToFill({"updates"});
  ASSERT_TRUE(none.ok());
  EXPECT_THAT(std::string(again.Restore(*none).message()),
              HasSubstr("\"updates\" is 1, and no averages were kept"));
  ASSERT_TRUE(again.Restore(*fresh).ok());
  EXPECT_EQ(std::get<int64_t>(*again.State()->Find("updates")), 0);
  // A load that fails before Restore leaves no averages.
  Ema failed({other.get()}, {.decay = 0.5});
  const absl::StatusOr<StateDict> unread = failed.StateToFill(NamesOf(*kept));
  ASSERT_TRUE(unread.ok());
  FillInPlace(std::get<Tensor>(*unread->Find("p.average")), 7);
  EXPECT_THAT(NamesOf(*failed.State()), ElementsAre("updates"));
  ASSERT_TRUE(failed.Update().ok());
  EXPECT_EQ(failed.average(0).ToVector<float>(), Values(kSize, 5));
  // A parameter without values is not read.
  Parameter deferred({kSize}, kFloat32, Initializer{});
  deferred.set_name("p");
  EXPECT_TRUE(Ema({&deferred}, {}).StateToFill(NamesOf(*kept)).ok());
}

TEST(EmaTest, MayBeMissingAsAWhole) {
  const auto p = MakeParameter("p", Values(kSize, 0));
  StateDifferences differences;
  Ema ema({p.get()}, {.decay = 0.5},
          {.allow_missing = true, .differences = &differences});
  ASSERT_TRUE(ema.Update().ok());
  const absl::StatusOr<StateDict> fill = ema.StateToFill({});
  ASSERT_TRUE(fill.ok()) << fill.status();
  EXPECT_TRUE(fill->empty());
  EXPECT_THAT(differences.missing, ElementsAre("updates"));
  ASSERT_TRUE(ema.Restore(*fill).ok());
  EXPECT_EQ(ema.average(0).ToVector<float>(), Values(kSize, 0));
  EXPECT_THAT(std::string(ema.StateToFill({"p.average"}).status().message()),
              HasSubstr("1 missing (updates)"));
}

TEST(EmaTest, SupportsAnyLayout) {
  OnMesh({{"fsdp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    const Layout rows = Layout::Replicated(mesh.layout(), 1).WithShard(0, 0);
    const auto at = [&](const std::vector<float>& values) {
      return DistributeTensor(FromValues<float>({kSize}, values), mesh, rows);
    };
    const auto p = MakeParameter("p", at(Values(kSize, 0)));
    Ema ema({p.get()}, {.decay = 0.5});
    CH_RETURN_IF_ERROR(ema.Update());
    p->set_data(at(Values(kSize, 1)));
    CH_RETURN_IF_ERROR(ema.Update());
    CH_EXPECT_EQ(LayoutOf(ema.average(0)), rows);
    CH_RETURN_IF_ERROR(ema.SwapIn());
    const std::vector<float> mixed = FullTensor(p->data()).ToVector<float>();
    for (size_t i = 0; i < mixed.size(); ++i) {
      // Halves are exact; their sum is rounded once.
      CH_EXPECT_EQ(mixed[i],
                   0.5f * Values(kSize, 0)[i] + 0.5f * Values(kSize, 1)[i]);
    }
    CH_RETURN_IF_ERROR(ema.SwapOut());
    CH_EXPECT_EQ(FullTensor(p->data()).ToVector<float>(), Values(kSize, 1));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace crosshatch::nn
