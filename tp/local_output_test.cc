// SPDX-License-Identifier: Apache-2.0

// Plain tensors that one style returns (use_local_output) and another style
// receives.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::tp {
namespace {

Tensor Input() { return SmallIntegers({2, 4}, 2).set_requires_grad(true); }

class Mlp final : public nn::Module {
 public:
  Mlp() {
    for (nn::Parameter* p : Parameters()) {
      p->set_data(SmallIntegers(p->data().sizes(), 1));
    }
  }
  // The program's computation between the two.
  std::function<Tensor(const Tensor&)> between = [](const Tensor& t) {
    return t;
  };

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {down_.Forward(between(up_.Forward(inputs[0])))};
  }

 private:
  nn::Linear& up_ = Make<nn::Linear>("up", 4, 6);
  nn::Linear& down_ = Make<nn::Linear>("down", 6, 4);
};

void ForwardOfMlp(const ParallelPlan& plan,
                  std::function<Tensor(const Tensor&)> between,
                  const ParallelizeOptions& options = {}) {
  OnMesh({{"tp", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
    Mlp net;
    net.between = between;
    CH_RETURN_IF_ERROR(ParallelizeModule(net, mesh, plan, options));
    for (int i = 0; i < 3; ++i) net.Forward(Input());
    return absl::OkStatus();
  });
}

TEST(LocalOutputDeathTest, MustBeUsedInItsOwnPlacement) {
  const auto same = [](const Tensor& t) { return t; };
  const Style columns = ColwiseParallel({.use_local_output = true});
  const Style whole =
      ColwiseParallel({.output = Replicate(), .use_local_output = true});
  EXPECT_DEATH(
      ForwardOfMlp({{"up", columns}, {"down", ColwiseParallel()}}, same),
      "up \\(Linear\\) returned the plain tensor f32.2, 3. on [a-z:0-9]+, a "
      "local "
      "shard of layout .S\\(1\\)., and the style of this module takes it as "
      ".R.; use one placement in both styles, or DTensors(.|\n)*"
      "module down \\(Linear\\)");
  EXPECT_DEATH(
      ForwardOfMlp({{"up", whole}, {"down", RowwiseParallel()}}, same),
      "layout .R., and the style of this module takes it as .S\\(1\\).");
  EXPECT_DEATH(
      ForwardOfMlp({{"up", columns}}, same, {.replicate_rest = true}),
      "layout .S\\(1\\)., and the style of this module takes it as .R.");
  // A style's own module also receives a plain tensor from it.
  EXPECT_DEATH(
      ForwardOfMlp({{"", PrepareModuleInput(
                             {.desired = Shard(0), .use_local_input = true})},
                    {"up", ColwiseParallel()}},
                   same),
      "Mlp returned .* of layout .S\\(0\\).(.|\n)*module up ");
  ForwardOfMlp(
      {{"up", columns}, {"down", RowwiseParallel({.input = Shard(1)})}}, same);
  // After an op, the plain tensor is the program's own.
  const ParallelPlan plan = {{"up", whole},
                             {"down", ColwiseParallel({.input = Partial()})}};
  ForwardOfMlp(plan, [](const Tensor& t) { return Mul(t, t); });
}

class Passes final : public nn::Module {
 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {inputs[0], inputs[1]};
  }
};

// Passes the output of `up` to `both` as second input, and from there, as
// second output, to `down`.
class InSecondPlace final : public nn::Module {
 public:
  InSecondPlace() {
    for (nn::Parameter* p : Parameters()) {
      p->set_data(SmallIntegers(p->data().sizes(), 1));
    }
  }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    const TensorList passed = both_.Call({inputs[0], up_.Forward(inputs[0])});
    return {down_.Forward(passed[1])};
  }

 private:
  nn::Linear& up_ = Make<nn::Linear>("up", 4, 4);
  Passes& both_ = Make<Passes>("both");
  nn::Linear& down_ = Make<nn::Linear>("down", 4, 4);
};

void ForwardInSecondPlace(const ParallelPlan& plan) {
  OnMesh({{"tp", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
    InSecondPlace net;
    CH_RETURN_IF_ERROR(ParallelizeModule(net, mesh, plan));
    net.Forward(Input());
    return absl::OkStatus();
  });
}

TEST(LocalOutputDeathTest, IsCheckedAtEachInputAndOutput) {
  const Style columns = ColwiseParallel({.use_local_output = true});
  const std::string of_up =
      "up \\(Linear\\) returned .* of layout .S\\(1\\)., and the style of this "
      "module takes it as .R.(.|\n)*module both ";
  EXPECT_DEATH(
      ForwardInSecondPlace({{"up", columns}, {"both", ReplicateParallel()}}),
      of_up);
  const PlacementList whole = {Replicate(), Replicate()};
  EXPECT_DEATH(
      ForwardInSecondPlace(
          {{"up", columns},
           {"both", PrepareModuleInput({.input = whole, .desired = whole})}}),
      of_up);
  EXPECT_DEATH(
      ForwardInSecondPlace(
          {{"up", columns},
           {"both", PrepareModuleOutput({.output = {std::nullopt, Shard(-1)},
                                         .desired = {std::nullopt, Replicate()},
                                         .use_local_output = true})},
           {"down", RowwiseParallel()}}),
      "both \\(Passes\\) returned .* of layout .R., and the style of this "
      "module takes it as .S\\(1\\).(.|\n)*module down ");
}

// By a style for the outputs of its module, and by a later style of a Combined.
TEST(LocalOutputDeathTest, IsCheckedWithinAModule) {
  const auto same = [](const Tensor& t) { return t; };
  EXPECT_DEATH(
      ForwardOfMlp({{"down", ColwiseParallel({.use_local_output = true})},
                    {"", PrepareModuleOutput({})}},
                   same),
      "down \\(Linear\\) returned .* of layout .S\\(1\\)., and the style of "
      "this module takes it as .R.(.|\n)*module Mlp");
  EXPECT_DEATH(
      ForwardOfMlp({{"down", ColwiseParallel({.use_local_output = true})},
                    {"", ReplicateParallel()}},
                   same),
      "layout .S\\(1\\)., and the style of this module takes it as .R.");
  EXPECT_DEATH(
      ForwardOfMlp(
          {{"up", Combined({PrepareModuleInput(
                                {.desired = Shard(0), .use_local_input = true}),
                            ColwiseParallel()})}},
          same),
      "up \\(Linear\\) returned .* of layout .S\\(0\\)., and the style of this "
      "module takes it as .R.");
}

class Fork final : public nn::Module {
 public:
  Fork() {
    int64_t salt = 0;
    for (nn::Parameter* p : Parameters()) {
      p->set_data(SmallIntegers(p->data().sizes(), ++salt));
    }
  }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    const Tensor y = first_.Forward(inputs[0]);
    return {left_.Forward(y), right_.Forward(y)};
  }

 private:
  nn::Linear& first_ = Make<nn::Linear>("first", 4, 4);
  nn::Linear& left_ = Make<nn::Linear>("left", 4, 4);
  nn::Linear& right_ = Make<nn::Linear>("right", 4, 4);
};

// On one rank, and on the first rank of a dim of size 1, the shard is the whole
// tensor and may share its memory.
TEST(LocalOutputTest, IsTheWholeTensorOfADimOfSizeOne) {
  const Tensor x = SmallIntegers({1, 4}, 2);
  const std::vector<float> expected = Fork().Call({x})[1].ToVector<float>();
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
      // The program passes one tensor to left and right.
      {{"left",
        PrepareModuleInput({.desired = Shard(0), .use_local_input = true})},
       {"right", ColwiseParallel()}},
  };
  for (const int ranks : {1, 2}) {
    for (const ParallelPlan& plan : plans) {
      OnMesh({{"tp", ranks}}, [&](const DeviceMesh& mesh) -> absl::Status {
        Fork net;
        CH_RETURN_IF_ERROR(ParallelizeModule(net, mesh, plan));
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
