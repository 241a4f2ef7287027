// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/models/llama.h"

#include <cmath>
#include <string>
#include <vector>

#include "crosshatch/nn/materialize.h"
#include "crosshatch/nn/models/kv_cache.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cross_entropy.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

LlamaConfig Small(bool tied = false) {
  LlamaConfig config;
  config.dim = 12;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 6;
  config.ffn = 20;
  config.vocab = 11;
  config.tied_embeddings = tied;
  return config;
}

std::vector<std::string> ParameterNames(Llama& model) {
  std::vector<std::string> names;
  for (const NamedParameter& named : model.NamedParameters()) {
    EXPECT_EQ(named.name, named.parameter->name());
    names.push_back(named.name);
  }
  return names;
}

Tensor Tokens(ShapeView sizes) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < NumElements(sizes); ++i) {
    ids.push_back(static_cast<int32_t>(i * 7 % 11));
  }
  return FromValues<int32_t>(sizes, absl::MakeConstSpan(ids));
}

TEST(LlamaTest, HasTheNamesOfHuggingFace) {
  LlamaConfig config = Small();
  config.layers = 1;
  Llama model(config);
  EXPECT_THAT(
      ParameterNames(model),
      ElementsAre(
          "embed_tokens.weight", "layers.0.input_layernorm.weight",
          "layers.0.self_attn.q_proj.weight",
          "layers.0.self_attn.k_proj.weight",
          "layers.0.self_attn.v_proj.weight",
          "layers.0.self_attn.o_proj.weight",
          "layers.0.post_attention_layernorm.weight",
          "layers.0.mlp.gate_proj.weight", "layers.0.mlp.up_proj.weight",
          "layers.0.mlp.down_proj.weight", "norm.weight", "lm_head.weight"));
  Llama tied(Small(true));
  EXPECT_THAT(ParameterNames(tied), Not(Contains("lm_head.weight")));
  EXPECT_EQ(tied.Parameters().size(), model.Parameters().size() + 9 - 1);
}

TEST(LlamaTest, OnMetaThereIsNoMemory) {
  const int64_t before =
      RankContext::Current().allocator().stats().current_total;
  Llama model(Small());
  EXPECT_EQ(RankContext::Current().allocator().stats().current_total, before);
  for (Parameter* parameter : model.Parameters()) {
    EXPECT_TRUE(parameter->data().device().is_meta());
  }
  int blocks = 0;
  for (Module& block : model.blocks()) {
    EXPECT_EQ(block.FullName(), "layers." + std::to_string(blocks++));
  }
  EXPECT_EQ(blocks, 2);
}

TEST(LlamaTest, ReturnsLogitsForEveryToken) {
  Llama model(Small(), Device::Cpu());
  const Tensor logits = model.Forward(Tokens({3, 5}));
  EXPECT_EQ(logits.sizes(), (Shape{3, 5, 11}));
  for (float value : logits.ToVector<float>()) {
    EXPECT_TRUE(std::isfinite(value));
  }
  const Tensor none = model.Forward(Tokens({0, 5}));
  EXPECT_EQ(none.sizes(), (Shape{0, 5, 11}));
  const Tensor loss =
      CrossEntropy(none, Tokens({0, 5}),
                   {.reduction = CrossEntropyOptions::Reduction::kSum});
  ASSERT_TRUE(Backward(loss).ok());
  for (Parameter* parameter : model.Parameters()) {
    ASSERT_TRUE(parameter->grad().defined()) << parameter->name();
    for (float value : parameter->grad().ToVector<float>()) {
      EXPECT_EQ(value, 0.0f) << parameter->name();
    }
  }
}

TEST(LlamaTest, IsCausal) {
  Llama model(Small(), Device::Cpu());
  const std::vector<int32_t> a = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<int32_t> b = {1, 2, 3, 9, 5, 6, 7, 8};
  const auto logits = [&](const std::vector<int32_t>& ids) {
    return model
        .Forward(FromValues<int32_t>(Shape{2, 4}, absl::MakeConstSpan(ids)))
        .ToVector<float>();
  };
  const std::vector<float> of_a = logits(a);
  const std::vector<float> of_b = logits(b);
  const int changed = 3 * 11;  // The offset of the logits of the changed token.
  for (int i = 0; i < 8 * 11; ++i) {
    if (i < changed || i >= changed + 11) {
      EXPECT_EQ(of_a[i], of_b[i]) << i;
    }
  }
  EXPECT_NE(of_a[changed], of_b[changed]);
}

// The sums in attention have at most 9 terms, which the cache splits into other
// blocks.
TEST(LlamaTest, ACacheStandsForTheTokensBefore) {
  Llama model(Small(), Device::Cpu());
  const NoGrad no_grad;
  const Tensor tokens = Tokens({2, 9});
  const std::vector<float> whole = model.Forward(tokens).ToVector<float>();
  for (const std::vector<int64_t>& cuts :
       {std::vector<int64_t>{9}, {5, 1, 1, 2}, {1, 8}}) {
    KvCache cache(9);
    model.set_cache(&cache);
    int64_t at = 0;
    for (const int64_t count : cuts) {
      const std::vector<float> part =
          model.Forward(Slice(tokens, 1, at, at + count)).ToVector<float>();
      for (int64_t row = 0; row < 2; ++row) {
        for (int64_t i = 0; i < count * 11; ++i) {
          const float expected =
              whole[static_cast<size_t>((row * 9 + at) * 11 + i)];
          EXPECT_NEAR(part[static_cast<size_t>(row * count * 11 + i)], expected,
                      16 * 9 * 0x1p-24 * (std::abs(expected) + 0.1))
              << at << " " << i;
        }
      }
      at += count;
      EXPECT_EQ(cache.length(), at);
    }
    model.set_cache(nullptr);
  }
  // A cache leaves no state in the model.
  EXPECT_EQ(model.Forward(tokens).ToVector<float>(), whole);
}

TEST(LlamaDeathTest, ACacheHasAnEnd) {
  Llama model(Small(), Device::Cpu());
  KvCache cache(3);
  model.set_cache(&cache);
  EXPECT_DEATH(model.Forward(Tokens({1, 2})), "run the model in NoGrad");
  const NoGrad no_grad;
  model.Forward(Tokens({1, 2}));
  EXPECT_DEATH(model.Forward(Tokens({1, 2})),
               "a KvCache of 3 positions that has 2 gets 2 more");
}

TEST(LlamaTest, GroupedHeadsAreRepeatedHeads) {
  LlamaConfig grouped = Small();
  grouped.layers = 1;
  LlamaConfig plain = grouped;
  plain.kv_heads = plain.heads;
  Llama a(grouped, Device::Cpu());
  Llama b(plain, Device::Cpu());
  const std::vector<NamedParameter> from = a.NamedParameters();
  const std::vector<NamedParameter> to = b.NamedParameters();
  const int64_t head = grouped.head_dim * grouped.dim;
  for (size_t i = 0; i < from.size(); ++i) {
    std::vector<float> values = from[i].parameter->data().ToVector<float>();
    if (from[i].parameter->data().sizes() != to[i].parameter->data().sizes()) {
      std::vector<float> repeated;
      for (int64_t h = 0; h < grouped.heads; ++h) {
        const auto begin = values.begin() + h / 2 * head;
        repeated.insert(repeated.end(), begin, begin + head);
      }
      values = repeated;
    }
    to[i].parameter->set_data(FromValues<float>(to[i].parameter->data().sizes(),
                                                absl::MakeConstSpan(values)));
  }
  const std::vector<float> x = a.Forward(Tokens({1, 5})).ToVector<float>();
  const std::vector<float> y = b.Forward(Tokens({1, 5})).ToVector<float>();
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], y[i], 1e-6);
}

TEST(LlamaDeathTest, NamesMismatchedShapes) {
  LlamaConfig config = Small();
  config.kv_heads = 3;
  EXPECT_DEATH(Llama{config}, HasSubstr("kv_heads must divide heads"));
  Llama model(Small(), Device::Cpu());
  EXPECT_DEATH(model.Forward(Tokens({3})), HasSubstr("are not [B, T]"));
}

}  // namespace
}  // namespace crosshatch::nn
