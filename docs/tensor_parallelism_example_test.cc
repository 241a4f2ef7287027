// SPDX-License-Identifier: Apache-2.0

// The C++ of docs/tensor_parallelism.md.

#include <cstdint>
#include <string>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/nn/layers/embedding.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/layers/norm.h"
#include "crosshatch/nn/loss.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gtest/gtest.h"

namespace ch = crosshatch;

namespace {

constexpr int64_t kDim = 6;
constexpr int64_t kVocab = 11;

class Attention final : public ch::nn::Module {
 public:
  Attention() {
    RegisterModule("q", q_);
    RegisterModule("k", k_);
    RegisterModule("v", v_);
    RegisterModule("out", out_);
  }

 protected:
  ch::TensorList ForwardImpl(ch::TensorSpan inputs) override {
    const auto heads = [&](ch::nn::Linear& projection) {
      const ch::Tensor y = projection.Forward(inputs[0]);
      return ch::View(y, {y.size(0), y.size(1), y.size(2) / 2, 2});
    };
    const ch::Tensor y =
        ch::CausalAttention(heads(q_), heads(k_), heads(v_), 0.7);
    return {out_.Forward(ch::View(y, {y.size(0), y.size(1), y.size(2) * 2}))};
  }

 private:
  ch::nn::Linear q_{kDim, 6};
  ch::nn::Linear k_{kDim, 6};
  ch::nn::Linear v_{kDim, 6};
  ch::nn::Linear out_{6, kDim};
};

class Model final : public ch::nn::Module {
 public:
  Model() {
    RegisterModule("embed", embed_);
    RegisterModule("layers.0.norm", norm_);
    RegisterModule("layers.0.attention", attention_);
    RegisterModule("layers.0.up", up_);
    RegisterModule("layers.0.down", down_);
    RegisterModule("head", head_);
  }

 protected:
  ch::TensorList ForwardImpl(ch::TensorSpan inputs) override {
    ch::Tensor x = embed_.Forward(inputs[0]);
    x = ch::Add(x, attention_.Forward(norm_.Forward(x)));
    x = ch::Add(x, down_.Forward(ch::Relu(up_.Forward(x))));
    return {head_.Forward(x)};
  }

 private:
  ch::nn::Embedding embed_{kVocab, kDim};
  ch::nn::RmsNorm norm_{kDim, 1e-5};
  Attention attention_;
  ch::nn::Linear up_{kDim, 7};
  ch::nn::Linear down_{7, kDim};
  ch::nn::Linear head_{kDim, kVocab};
};

// Its second input, made whole.
class Reader final : public ch::nn::Module, public ch::nn::NamedInputs {
 public:
  std::vector<std::string> input_names() const override {
    return {"x", "memory"};
  }

 protected:
  ch::TensorList ForwardImpl(ch::TensorSpan inputs) override {
    return {inputs[1]};
  }
};

TEST(TensorParallelismPageTest, Runs) {
  ch::OnMesh(
      {{"fsdp", 2}, {"tp", 2}}, [](const ch::DeviceMesh& mesh) -> absl::Status {
        CH_ASSIGN_OR_RETURN(const ch::DeviceMesh tp, mesh.Slice("tp"));
        CH_ASSIGN_OR_RETURN(const ch::DeviceMesh fsdp, mesh.Slice("fsdp"));
        Model model;
        // [plan]
        const ch::tp::ParallelPlan plan = {
            {"embed", ch::tp::RowwiseParallel()},
            // Heads of width 2 stay whole.
            {"layers.*.attention.[qkv]", ch::tp::ColwiseParallel({.unit = 2})},
            {"layers.*.attention.out", ch::tp::RowwiseParallel({.unit = 2})},
            {"layers.*.up", ch::tp::ColwiseParallel()},
            {"layers.*.down", ch::tp::RowwiseParallel()},
            {"head", ch::tp::ColwiseParallel()},
        };
        CH_RETURN_IF_ERROR(ch::tp::ParallelizeModule(model, tp, plan,
                                                     {.replicate_rest = true}));
        // [/plan]
        CH_RETURN_IF_ERROR(model.Materialize({.seed = 1}));
        const ch::Tensor tokens = ch::FromValues<int32_t>({1, 4}, {1, 4, 9, 5});
        const ch::Tensor targets =
            ch::FromValues<int32_t>({1, 4}, {4, 9, 5, 3});
        const ch::Tensor logits = model.Forward(tokens);
        CH_EXPECT_EQ(ch::LayoutOf(logits).ToString(), "[S(2)]");
        // [loss]
        const ch::Tensor loss = ch::nn::CrossEntropyLoss(
            logits, targets, {.label_smoothing = 0.1, .mean_over = fsdp});
        CH_RETURN_IF_ERROR(ch::Backward(loss));
        CH_ASSIGN_OR_RETURN(const double mean,
                            ch::nn::MeanOverAxis(loss, fsdp));
        // [/loss]
        // Weights are small, so every token is about as likely: log(11).
        CH_EXPECT_NEAR(mean, 2.4, 0.1);

        // [named]
        const ch::tp::Style style = ch::tp::PrepareModuleInput(
            {.input = {},  // nothing by position
             .desired = {},
             .named = {{"memory",
                        {.input = ch::Shard(1), .desired = ch::Replicate()}}}});
        // [/named]
        Reader reader;
        CH_RETURN_IF_ERROR(
            ch::tp::ParallelizeModule(reader, tp, {{"", style}}));
        const ch::TensorList read =
            reader.Call({ch::Ones({3}), ch::Ones({2, 3})});
        CH_EXPECT_EQ(read[0].sizes(), (ch::Shape{2, 6}));
        return absl::OkStatus();
      });
}

}  // namespace
