// SPDX-License-Identifier: Apache-2.0

/// \file
/// A vision transformer on a mesh: patches of images by a convolution, a class
/// token before them, and a classifier of that token's output. The images are
/// synthetic: bars whose width depends on the class.
///
///     vit [MESH]                      e.g. fsdp:2,tp:2

#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/examples/example_job.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/layers/containers.h"
#include "crosshatch/nn/layers/conv.h"
#include "crosshatch/nn/layers/gelu.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/layers/norm.h"
#include "crosshatch/nn/loss.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tp/parallelize_module.h"

namespace ch = crosshatch;
namespace nn = crosshatch::nn;
using ch::Tensor;

namespace {

constexpr int64_t kRows = 7;  // Of a batch; not divisible by any mesh.
constexpr int64_t kSide = 8;  // Of an image with one channel.
constexpr int64_t kPatch = 2;
constexpr int64_t kTokens = kSide / kPatch * kSide / kPatch + 1;
constexpr int64_t kDim = 24;
constexpr int64_t kHeads = 3;
constexpr int64_t kHeadDim = kDim / kHeads;
constexpr int64_t kClasses = 4;

// [attention]
// Attention without a mask: [B, T, dim] to [B, T, dim].
class Attention final : public nn::Module {
 protected:
  ch::TensorList ForwardImpl(ch::TensorSpan inputs) override {
    const auto heads = [&](nn::Linear& projection) {
      const Tensor y = projection.Forward(inputs[0]);
      return View(y, {y.size(0), y.size(1), y.size(2) / kHeadDim, kHeadDim});
    };
    const Tensor y = ch::Attention(heads(q_), heads(k_), heads(v_),
                                   1 / std::sqrt(double{kHeadDim}));
    return {
        out_.Forward(View(y, {y.size(0), y.size(1), y.size(2) * kHeadDim}))};
  }

 private:
  nn::Linear& q_ =
      Make<nn::Linear>("q", {.in = kDim, .out = kDim, .bias = true});
  nn::Linear& k_ =
      Make<nn::Linear>("k", {.in = kDim, .out = kDim, .bias = true});
  nn::Linear& v_ =
      Make<nn::Linear>("v", {.in = kDim, .out = kDim, .bias = true});
  nn::Linear& out_ =
      Make<nn::Linear>("out", {.in = kDim, .out = kDim, .bias = true});
};
// [/attention]

class Block final : public nn::Module {
 public:
  Block() {
    mlp_.Add<nn::Linear>(kDim, 4 * kDim, nn::LinearOptions{.bias = true});
    mlp_.Add<nn::Gelu>();
    mlp_.Add<nn::Linear>(4 * kDim, kDim, nn::LinearOptions{.bias = true});
  }

 protected:
  ch::TensorList ForwardImpl(ch::TensorSpan inputs) override {
    const Tensor x =
        Add(inputs[0], attention_.Forward(norm_1_.Forward(inputs[0])));
    return {Add(x, mlp_.Forward(norm_2_.Forward(x)))};
  }

 private:
  nn::LayerNorm& norm_1_ = Make<nn::LayerNorm>("norm_1", kDim);
  Attention& attention_ = Make<Attention>("attention");
  nn::LayerNorm& norm_2_ = Make<nn::LayerNorm>("norm_2", kDim);
  nn::Sequential& mlp_ = Make<nn::Sequential>("mlp");
};

// Maps patches [B, T - 1, dim] to tokens [B, T, dim]: prepends the class token
// and adds position embeddings.
class Tokens final : public nn::Module {
 protected:
  ch::TensorList ForwardImpl(ch::TensorSpan inputs) override {
    const Tensor& patches = inputs[0];
    const Tensor front =
        Expand(class_.Get(), {patches.size(0), 1, patches.size(2)});
    return {Add(ch::Cat(ch::TensorList{front, patches}, 1), positions_.Get())};
  }

 private:
  nn::Parameter& class_ =
      MakeParameter("class", {1, 1, kDim}, nn::init::Normal(0.02));
  nn::Parameter& positions_ =
      MakeParameter("positions", {1, kTokens, kDim}, nn::init::Normal(0.02));
};

// Maps images [B, 1, side, side] to logits [B, classes].
class Vit final : public nn::Module {
 public:
  std::vector<nn::Module*> blocks() { return {&block_0_, &block_1_}; }

 protected:
  ch::TensorList ForwardImpl(ch::TensorSpan inputs) override {
    // [B, dim, side / patch, side / patch] to [B, patches, dim].
    const Tensor patches =
        Transpose(ch::Flatten(patches_.Forward(inputs[0]), 2), 1, 2);
    Tensor x = block_0_.Forward(tokens_.Forward(patches));
    x = norm_.Forward(block_1_.Forward(x));
    return {head_.Forward(Select(x, 1, 0))};
  }

 private:
  nn::Conv2d& patches_ = Make<nn::Conv2d>(
      "patches", 1, kDim, ch::RowsCols{kPatch, kPatch},
      ch::Conv2dOptions{.windows = {.stride = {kPatch, kPatch}}});
  Tokens& tokens_ = Make<Tokens>("tokens");
  Block& block_0_ = Make<Block>("block_0");
  Block& block_1_ = Make<Block>("block_1");
  nn::LayerNorm& norm_ = Make<nn::LayerNorm>("norm", kDim);
  nn::Linear& head_ =
      Make<nn::Linear>("head", kDim, kClasses, nn::LinearOptions{.bias = true});
};

// [parallelize]
absl::Status Parallelize(Vit& model, const ch::DeviceMesh& mesh) {
  CH_ASSIGN_OR_RETURN(const ch::DeviceMesh tp, mesh.Slice("tp"));
  CH_ASSIGN_OR_RETURN(const ch::DeviceMesh fsdp, mesh.Slice("fsdp"));
  // The residual stream is a plain tensor that is equal on all tp ranks. So
  // modules that the plan does not name stay unchanged.
  CH_RETURN_IF_ERROR(ch::tp::ParallelizeModule(
      model, tp,
      {{"block_*.attention.[qkv]", ch::tp::ColwiseParallel({.unit = kHeadDim})},
       {"block_*.attention.out",
        ch::tp::RowwiseParallel({.use_local_output = true, .unit = kHeadDim})},
       {"block_*.mlp.0", ch::tp::ColwiseParallel()},
       {"block_*.mlp.2",
        ch::tp::RowwiseParallel({.use_local_output = true})}}));
  for (nn::Module* block : model.blocks()) {
    CH_RETURN_IF_ERROR(ch::fsdp::FullyShard(*block, fsdp));
  }
  return ch::fsdp::FullyShard(model, fsdp);
}
// [/parallelize]

// Appends row `i` of step `step`: a bar, two pixels wide per class index.
void Draw(int64_t step, int64_t i, std::vector<float>& pixels,
          std::vector<int32_t>& classes) {
  const int64_t c = (step + i) % kClasses;
  for (int64_t at = 0; at < kSide * kSide; ++at) {
    const bool bright = (at + i * 3) % kSide < 2 * c;
    pixels.push_back(bright ? 1.0f : -1.0f);
  }
  classes.push_back(static_cast<int32_t>(c));
}

absl::Status Train(const ch::DeviceMesh& mesh) {
  Vit model;
  CH_RETURN_IF_ERROR(Parallelize(model, mesh));
  CH_RETURN_IF_ERROR(model.Materialize({.seed = 7}));
  CH_ASSIGN_OR_RETURN(const ch::DeviceMesh data, mesh.Slice("fsdp"));
  const ch::Interval rows = ch::RowsOf(data, kRows);
  return ch::examples::TrainSomeSteps(
      model, data, [&](int64_t step) -> absl::StatusOr<Tensor> {
        std::vector<float> pixels;
        std::vector<int32_t> classes;
        for (int64_t i = rows.begin; i < rows.end; ++i) {
          Draw(step, i, pixels, classes);
        }
        return nn::CrossEntropyLoss(
            model.Forward(
                ch::FromValues<float>({rows.size(), 1, kSide, kSide}, pixels)),
            ch::FromValues<int32_t>({rows.size()}, classes),
            {.mean_over = data});
      });
}

}  // namespace

int main(int argc, char** argv) {
  return ch::examples::RunExample(argc > 1 ? argv[1] : "", {"fsdp", "tp"},
                                  Train);
}
