// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tp/handed_out.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::tp {
namespace {

// An MLP whose flows nobody tells, whose first module is `up`.
class Untold final : public nn::Module {
 public:
  Untold() : up_(4, 6), down_(6, 4) {
    RegisterModule("up", up_);
    RegisterModule("down", down_);
    for (nn::Parameter* p : Parameters()) {
      p->set_data(SmallIntegers(p->data().sizes(), 1));
    }
  }
  const char* type_name() const override { return "Untold"; }
  // Between the two.
  std::function<Tensor(const Tensor&)> between = [](const Tensor& t) {
    return t;
  };

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {down_.Forward(between(up_.Forward(inputs[0])))};
  }

 private:
  nn::Linear up_;
  nn::Linear down_;
};

// On two ranks; what stands between the modules is `between`.
void ForwardOfUntold(const ParallelPlan& plan,
                     std::function<Tensor(const Tensor&)> between,
                     const ParallelizeOptions& options = {}) {
  OnMesh({{"tp", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
    Untold net;
    net.between = between;
    CH_RETURN_IF_ERROR(ParallelizeModule(net, mesh, plan, options));
    // Autograd knows of no writes to what crosses the border to DTensors.
    const NoGrad no_grad;
    for (int i = 0; i < 3; ++i) net.Forward(SmallIntegers({2, 4}, 2));
    return absl::OkStatus();
  });
}

TEST(PlainTensorDeathTest, IsNotTakenOtherwiseThanItWasHandedOut) {
  const auto same = [](const Tensor& t) { return t; };
  const Style columns = ColwiseParallel({.use_local_output = true});
  const Style whole =
      ColwiseParallel({.output = Replicate(), .use_local_output = true});
  EXPECT_DEATH(
      ForwardOfUntold({{"up", columns}, {"down", ColwiseParallel()}}, same),
      "module up \\(Linear\\) with ColwiseParallel hands out a plain tensor "
      "that lies as S\\(-1\\), and module down \\(Linear\\) with "
      "ColwiseParallel takes it as R; let one of them say what the other does, "
      "or hand out DTensors");
  EXPECT_DEATH(
      ForwardOfUntold({{"up", whole}, {"down", RowwiseParallel()}}, same),
      "lies as R, and module down .* takes it as S\\(-1\\)");
  EXPECT_DEATH(
      ForwardOfUntold({{"up", columns}}, same, {.replicate_rest = true}),
      "lies as S\\(-1\\), and module down \\(Linear\\) with no style takes it "
      "as R");
  // A style's own module gets a plain tensor from it as well.
  EXPECT_DEATH(
      ForwardOfUntold({{"", PrepareModuleInput({.desired = Shard(0),
                                                .use_local_input = true})},
                       {"up", ColwiseParallel()}},
                      same),
      "module Untold with PrepareModuleInput hands out a plain tensor that "
      "lies as S\\(0\\), and module up ");
  // Dims from either end are compared where there is a tensor.
  ForwardOfUntold(
      {{"up", columns}, {"down", RowwiseParallel({.input = Shard(1)})}}, same);
  // What an op or a write makes of it is the program's.
  const ParallelPlan plan = {{"up", whole},
                             {"down", ColwiseParallel({.input = Partial()})}};
  ForwardOfUntold(plan, [](const Tensor& t) { return Mul(t, t); });
  ForwardOfUntold(plan, [](const Tensor& t) {
    MulInPlace(t, 0.5);
    return t;
  });
}

// Gives on what it gets.
class Passes final : public nn::Module {
 public:
  const char* type_name() const override { return "Passes"; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {inputs[0], inputs[1]};
  }
};

// What `up` makes goes to `both` as a second input, and from there, as a second
// output, to `down`.
class InSecondPlace final : public nn::Module {
 public:
  InSecondPlace() : up_(4, 4), down_(4, 4) {
    RegisterModule("up", up_);
    RegisterModule("both", both_);
    RegisterModule("down", down_);
    for (nn::Parameter* p : Parameters()) {
      p->set_data(SmallIntegers(p->data().sizes(), 1));
    }
  }
  const char* type_name() const override { return "InSecondPlace"; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    const TensorList passed = both_.Call({inputs[0], up_.Forward(inputs[0])});
    return {down_.Forward(passed[1])};
  }

 private:
  nn::Linear up_;
  Passes both_;
  nn::Linear down_;
};

void ForwardInSecondPlace(const ParallelPlan& plan) {
  OnMesh({{"tp", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
    InSecondPlace net;
    CH_RETURN_IF_ERROR(ParallelizeModule(net, mesh, plan));
    const NoGrad no_grad;
    net.Forward(SmallIntegers({2, 4}, 2));
    return absl::OkStatus();
  });
}

TEST(PlainTensorDeathTest, NoneOfSeveralIsTakenOtherwise) {
  const Style columns = ColwiseParallel({.use_local_output = true});
  const std::string of_up =
      "module up \\(Linear\\) with ColwiseParallel hands out a plain tensor "
      "that lies as S\\(-1\\), and module both \\(Passes\\) with ";
  EXPECT_DEATH(
      ForwardInSecondPlace({{"up", columns}, {"both", ReplicateParallel()}}),
      of_up + "ReplicateParallel takes it as R");
  const PlacementList whole = {Replicate(), Replicate()};
  EXPECT_DEATH(
      ForwardInSecondPlace(
          {{"up", columns},
           {"both", PrepareModuleInput({.input = whole, .desired = whole})}}),
      of_up + "PrepareModuleInput takes it as R");
  EXPECT_DEATH(
      ForwardInSecondPlace(
          {{"up", columns},
           {"both", PrepareModuleOutput({.output = {std::nullopt, Shard(-1)},
                                         .desired = {std::nullopt, Replicate()},
                                         .use_local_output = true})},
           {"down", RowwiseParallel()}}),
      "module both \\(Passes\\) with PrepareModuleOutput hands out a plain "
      "tensor that lies as R, and module down \\(Linear\\) with "
      "RowwiseParallel takes it as S\\(-1\\)");
}

// A style that takes what comes out of its module, or what one before it in a
// Combined hands in.
TEST(PlainTensorDeathTest, IsNotTakenOtherwiseOnTheWayOut) {
  const auto same = [](const Tensor& t) { return t; };
  EXPECT_DEATH(
      ForwardOfUntold({{"down", ColwiseParallel({.use_local_output = true})},
                       {"", PrepareModuleOutput({})}},
                      same),
      "module down \\(Linear\\) with ColwiseParallel hands out a plain tensor "
      "that lies as S\\(-1\\), and module Untold with PrepareModuleOutput "
      "takes it as R");
  EXPECT_DEATH(
      ForwardOfUntold({{"down", ColwiseParallel({.use_local_output = true})},
                       {"", ReplicateParallel()}},
                      same),
      "lies as S\\(-1\\), and module Untold with ReplicateParallel takes it "
      "as R");
  EXPECT_DEATH(
      ForwardOfUntold(
          {{"up", Combined({PrepareModuleInput(
                                {.desired = Shard(0), .use_local_input = true}),
                            ColwiseParallel()})}},
          same),
      "module up \\(Linear\\) with PrepareModuleInput hands out a plain tensor "
      "that lies as S\\(0\\), and module up \\(Linear\\) with "
      "ColwiseParallel takes it as R");
}

// What `first` makes goes to two modules beside each other.
class Beside final : public nn::Module {
 public:
  Beside() : first_(4, 4), left_(4, 4), right_(4, 4) {
    RegisterModule("first", first_);
    RegisterModule("left", left_);
    RegisterModule("right", right_);
    int64_t salt = 0;
    for (nn::Parameter* p : Parameters()) {
      p->set_data(SmallIntegers(p->data().sizes(), ++salt));
    }
  }
  const char* type_name() const override { return "Beside"; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    const Tensor y = first_.Forward(inputs[0]);
    return {left_.Forward(y), right_.Forward(y)};
  }

 private:
  nn::Linear first_;
  nn::Linear left_;
  nn::Linear right_;
};

// On one rank, and on the first that splits one row, the part is the whole, and
// a part that a style hands in is the tensor that came.
TEST(PlainTensorTest, LiesEitherWayWhereThePartIsTheWhole) {
  const Tensor x = SmallIntegers({1, 4}, 2);
  const std::vector<float> expected = Beside().Call({x})[1].ToVector<float>();
  const Style gathered =
      Combined({PrepareModuleInput({.input = Shard(0),
                                    .desired = Replicate(),
                                    .use_local_input = true}),
                ColwiseParallel()});
  const std::vector<ParallelPlan> plans = {
      {{"first", SequenceParallel(0, /*use_local_output=*/true)},
       {"left", gathered},
       {"right", gathered}},
      {{"first", ReplicateParallel({.use_local_output = true})},
       {"left",
        PrepareModuleInput({.desired = Shard(0), .use_local_input = true})},
       {"right", ColwiseParallel()}},
      // Nobody hands out what comes to left and right.
      {{"left",
        PrepareModuleInput({.desired = Shard(0), .use_local_input = true})},
       {"right", ColwiseParallel()}},
  };
  for (const int ranks : {1, 2}) {
    for (const ParallelPlan& plan : plans) {
      OnMesh({{"tp", ranks}}, [&](const DeviceMesh& mesh) -> absl::Status {
        Beside net;
        CH_RETURN_IF_ERROR(ParallelizeModule(net, mesh, plan));
        const NoGrad no_grad;
        const Tensor whole = SmallIntegers({1, 4}, 2);
        const bool plain = plan.size() == 2;
        const Tensor input =
            plain ? whole : DistributeTensor(whole, mesh, {Shard(0)});
        const Tensor right = net.Call({input})[1];
        CH_EXPECT_EQ(FullTensor(right).ToVector<float>(), expected);
        return absl::OkStatus();
      });
    }
  }
}

}  // namespace
}  // namespace crosshatch::tp
