// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_GPT2_MODEL_H_
#define CROSSHATCH_EXAMPLES_GPT2_MODEL_H_

/// \file
/// GPT-2 as a user would write it: the model, the names of its weights in
/// Hugging Face's files, and its sharding. gpt2.cc trains it.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "crosshatch/checkpoint/weight_names.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/layers/containers.h"
#include "crosshatch/nn/layers/embedding.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/layers/norm.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::examples {

/// Sizes of a GPT-2.
struct Gpt2Config {
  int64_t dim = 12;
  int64_t layers = 2;
  int64_t heads = 3;
  int64_t vocab = 17;
  int64_t positions = 8;

  int64_t head_dim() const { return dim / heads; }
};

// [model]
/// Causal attention from [B, T, dim] to [B, T, dim]. Takes the number of heads
/// from the projections' outputs, so it also works on a rank's own heads.
class Gpt2Attention final : public nn::Module {
 public:
  explicit Gpt2Attention(const Gpt2Config& config);

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override;

 private:
  const int64_t head_dim_;
  nn::Linear& q_;
  nn::Linear& k_;
  nn::Linear& v_;
  nn::Linear& c_proj_;
};

/// Two linear layers with a GELU (tanh approximation) between them.
class Gpt2Mlp final : public nn::Module {
 public:
  explicit Gpt2Mlp(const Gpt2Config& config);

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override;

 private:
  nn::Linear& c_fc_;
  nn::Linear& c_proj_;
};

class Gpt2Block final : public nn::Module {
 public:
  explicit Gpt2Block(const Gpt2Config& config);

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override;

 private:
  nn::LayerNorm& ln_1_;
  Gpt2Attention& attn_;
  nn::LayerNorm& ln_2_;
  Gpt2Mlp& mlp_;
};

/// Maps tokens [B, T] to logits [B, T, vocab]. The head shares the embedding's
/// weight.
class Gpt2 final : public nn::Module {
 public:
  explicit Gpt2(const Gpt2Config& config);
  const nn::ModuleList<Gpt2Block>& blocks() const { return h_; }
  const Gpt2Config& config() const { return config_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override;

 private:
  const Gpt2Config config_;
  nn::Embedding& wte_;
  nn::Embedding& wpe_;
  nn::ModuleList<Gpt2Block>& h_;
  nn::LayerNorm& ln_f_;
  nn::Linear& lm_head_;
};
// [/model]

/// Returns the names of the parameters in files of Hugging Face's
/// GPT2LMHeadModel. It stores matrices as [in, out], and queries, keys and
/// values concatenated.
checkpoint::WeightNames Gpt2Names();
std::string Gpt2ConfigText(const Gpt2Config& config);

/// Shards a model over the axes "tp" and "fsdp" of `mesh`, before it has its
/// values. Gradients are summed over "fsdp", so each rank's loss is its part of
/// the batch's loss.
absl::Status ParallelizeGpt2(Gpt2& model, const DeviceMesh& mesh);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_GPT2_MODEL_H_
