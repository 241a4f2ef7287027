// SPDX-License-Identifier: Apache-2.0

// Styles for the inputs and outputs of a module, by position and by name.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/nn/layers/norm.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/near.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::tp {
namespace {

using ::testing::HasSubstr;

// [5, 4] and [3, 4]: sizes that two and three ranks do not divide.
constexpr int64_t kRows = 5;
constexpr int64_t kMemory = 3;
constexpr int64_t kWidth = 4;

std::string LayoutText(const Tensor& t) {
  if (!t.defined()) return "undefined";
  return t.is_distributed() ? LayoutOf(t).ToString() : "plain";
}

// Computes (x [5, 4], memory [3, 4], scale [4]) -> (x * scale, memory * 2, x
// memory^T).
class Mixer final : public nn::Module, public nn::NamedInputs {
 public:
  std::vector<std::string> input_names() const override {
    return {"x", "memory", "scale"};
  }
  // The layouts of the inputs of the last forward.
  std::vector<std::string> layouts;

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    layouts.clear();
    for (const Tensor& t : inputs) layouts.push_back(LayoutText(t));
    const Tensor scaled =
        inputs[2].defined() ? Mul(inputs[0], inputs[2]) : inputs[0];
    return {scaled, Mul(inputs[1], 2.0),
            MatMul(inputs[0], inputs[1], false, /*transpose_b=*/true)};
  }
};

TensorList Inputs() {
  return {SmallIntegers({kRows, kWidth}, 1),
          SmallIntegers({kMemory, kWidth}, 2), SmallIntegers({kWidth}, 3)};
}

// Returns this rank's rows of `whole`.
Tensor Part(const Tensor& whole, const DeviceMesh& mesh, int dim) {
  return Clone(LocalTensor(DistributeTensor(
      whole, mesh,
      Layout::Replicated(mesh.layout(), whole.ndim()).WithShard(0, dim))));
}

Values WholeOf(const TensorList& tensors) {
  Values values;
  for (const Tensor& t : tensors) {
    values.push_back(FullTensor(t).ToVector<float>());
  }
  return values;
}

TEST(PrepareModuleInputTest, RedistributesInputsAndSkipsGaps) {
  Mixer one;
  const Values expected = WholeOf(one.Call(Inputs()));
  for (const int ranks : {1, 2, 3}) {
    OnMesh({{"tp", ranks}}, [&](const DeviceMesh& mesh) -> absl::Status {
      const TensorList whole = Inputs();
      // The rows of x and memory are split. The scale stays unchanged, by a
      // missing or an empty entry.
      const std::vector<PrepareInputOptions> ways = {
          {.input = {Shard(0), Shard(0)}, .desired = {Shard(0), Replicate()}},
          {.input = {Shard(0), Shard(0), std::nullopt},
           .desired = {Shard(0), Replicate(), std::nullopt}},
          {.input = {},
           .desired = {},
           .named = {{"memory", {.input = Shard(0), .desired = Replicate()}},
                     {"x", {.input = Shard(0), .desired = Shard(0)}}}},
          {.input = {std::nullopt, Shard(0)},
           .desired = {std::nullopt, Replicate()},
           .named = {{"x", {.input = Shard(0), .desired = Shard(0)}}}}};
      for (const PrepareInputOptions& options : ways) {
        Mixer mixer;
        CH_RETURN_IF_ERROR(ParallelizeModule(
            mixer, mesh, {{"", PrepareModuleInput(options)}}));
        const TensorList outputs =
            mixer.Call({Part(whole[0], mesh, 0), Part(whole[1], mesh, 0),
                        Replicated(whole[2], mesh)});
        CH_EXPECT_EQ(mixer.layouts,
                     (std::vector<std::string>{"[S(0)]", "[R]", "[R]"}));
        CH_EXPECT_EQ(WholeOf(outputs), expected);
        // An undefined input stays undefined.
        mixer.Call({Part(whole[0], mesh, 0), Part(whole[1], mesh, 0), {}});
        CH_EXPECT_EQ(mixer.layouts[2], "undefined");
      }
      return absl::OkStatus();
    });
  }
}

// Multiplies a rank's rows with the whole memory. The gradients of the
// replicated memory are summands, or equal if all ranks compute the same.
TEST(PrepareModuleInputTest, PassesLocalShardsToTheModule) {
  for (const bool sums : {false, true}) {
    OnMesh({{"tp", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
      Mixer mixer;
      PrepareInputOptions options;
      options.input = {sums ? Shard(0) : Replicate(), Replicate()};
      options.desired = options.input;
      options.use_local_input = true;
      options.sum_local_gradients = sums;
      CH_RETURN_IF_ERROR(
          ParallelizeModule(mixer, mesh, {{"", PrepareModuleInput(options)}}));
      const TensorList whole = Inputs();
      const Layout replicated = Layout::Replicated(mesh.layout(), 2);
      Tensor memory = DistributeTensor(whole[1], mesh, replicated);
      memory.set_requires_grad(true);
      const Tensor x = sums ? Part(whole[0], mesh, 0) : whole[0];
      const TensorList outputs = mixer.Call({x, memory, {}});
      CH_EXPECT_EQ(mixer.layouts,
                   (std::vector<std::string>{"plain", "plain", "undefined"}));
      CH_RETURN_IF_ERROR(Backward(Sum(outputs[2])));
      Tensor one = whole[1].Detach().set_requires_grad(true);
      CH_RETURN_IF_ERROR(Backward(Sum(MatMul(whole[0], one, false, true))));
      CH_EXPECT_EQ(FullTensor(memory.grad()).ToVector<float>(),
                   one.grad().ToVector<float>());
      return absl::OkStatus();
    });
  }
}

TEST(PrepareModuleInputOutputTest, SeesAllOfBoth) {
  Mixer one;
  const Values expected = WholeOf(one.Call(Inputs()));
  for (const int ranks : {1, 2, 3}) {
    OnMesh({{"tp", ranks}}, [&](const DeviceMesh& mesh) -> absl::Status {
      const TensorList whole = Inputs();
      Mixer mixer;
      const Style style = PrepareModuleInputOutput(
          {.inputs = {.input = {Shard(0), Shard(0), Replicate()},
                      .desired = {Shard(0), Replicate(), Replicate()}},
           .outputs = {.output = {Shard(0), std::nullopt, Shard(0)},
                       .desired = {Replicate(), std::nullopt, Shard(1)}}});
      CH_RETURN_IF_ERROR(ParallelizeModule(mixer, mesh, {{"", style}}));
      const TensorList outputs = mixer.Call(
          {Part(whole[0], mesh, 0), Part(whole[1], mesh, 0), whole[2]});
      CH_EXPECT_EQ(LayoutText(outputs[0]), "[R]");
      CH_EXPECT_EQ(LayoutText(outputs[1]), "[R]");  // Unchanged.
      CH_EXPECT_EQ(LayoutText(outputs[2]), "[S(1)]");
      CH_EXPECT_EQ(WholeOf(outputs), expected);
      return absl::OkStatus();
    });
  }
}

TEST(PrepareModuleInputTest, NamesMismatches) {
  OnMesh({{"tp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    const auto message = [&](nn::Module& module, PrepareInputOptions options) {
      return std::string(
          ParallelizeModule(module, mesh,
                            {{"", PrepareModuleInput(std::move(options))}})
              .message());
    };
    Mixer mixer;
    CH_EXPECT_THAT(
        message(mixer, {.input = {Shard(0), Shard(0)}, .desired = Shard(0)}),
        HasSubstr("2 placements of inputs and 1 desired placements"));
    CH_EXPECT_THAT(message(mixer, {.input = {Shard(0), std::nullopt},
                                   .desired = {Shard(0), Replicate()}}),
                   HasSubstr("entry 1: the placement of the input is missing"));
    CH_EXPECT_THAT(
        message(mixer, {.input = {}, .desired = {}, .named = {{"y", {}}}}),
        HasSubstr("no input is called \"y\"; there are: x, memory, scale"));
    CH_EXPECT_THAT(message(mixer, {.named = {{"x", {}}}}),
                   HasSubstr("\"x\" is number 0 of `input`, too"));
    CH_EXPECT_THAT(message(mixer, {.sum_local_gradients = true}),
                   HasSubstr("sum_local_gradients is of local inputs"));
    nn::RmsNorm norm(kWidth, 1e-5);
    CH_EXPECT_THAT(
        message(norm, {.input = {}, .desired = {}, .named = {{"x", {}}}}),
        HasSubstr("RmsNorm does not (nn::NamedInputs)"));
    return absl::OkStatus();
  });
}

TEST(PrepareModuleInputDeathTest, CountsInputsAtTheForward) {
  EXPECT_DEATH(
      OnMesh({{"tp", 1}},
             [](const DeviceMesh& mesh) -> absl::Status {
               nn::RmsNorm norm(kWidth, 1e-5);
               CH_RETURN_IF_ERROR(ParallelizeModule(
                   norm, mesh,
                   {{"", PrepareModuleInput(
                             {.input = {Replicate(), Replicate()},
                              .desired = {Replicate(), Replicate()}})}}));
               CH_RETURN_IF_ERROR(norm.Materialize({}));
               norm.Forward(Ones({2, kWidth}));
               return absl::OkStatus();
             }),
      "has placements of 2 inputs, and there are 1");
}

}  // namespace
}  // namespace crosshatch::tp
