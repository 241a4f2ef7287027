// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/weight_names.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/parameter.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Parameters {
 public:
  Parameters& Add(const std::string& name, Shape sizes,
                  DType dtype = kFloat32) {
    owned_.push_back(
        std::make_shared<nn::Parameter>(sizes, dtype, nn::Initializer{}));
    named_.push_back({name, owned_.back().get()});
    return *this;
  }
  const std::vector<nn::NamedParameter>& named() const { return named_; }

 private:
  std::vector<std::shared_ptr<nn::Parameter>> owned_;
  std::vector<nn::NamedParameter> named_;
};

TEST(WeightNamesTest, StarsMatchAsLittleAsWillDo) {
  std::vector<std::string> stars;
  EXPECT_TRUE(MatchesStars("a.*.c.*", "a.b.c.c.d", &stars));
  EXPECT_THAT(stars, ElementsAre("b", "c.d"));
  stars.clear();
  EXPECT_FALSE(MatchesStars("a.*.c", "a.b.d", &stars));
  EXPECT_TRUE(stars.empty());
  EXPECT_TRUE(MatchesStars("*.inv_freq", "x.y.inv_freq", nullptr));
  EXPECT_TRUE(MatchesStars("", "", nullptr));
  EXPECT_FALSE(MatchesStars("a", "ab", nullptr));
}

TEST(WeightNamesTest, MergesPartsInTheirOrder) {
  Parameters model;
  model.Add("layers.0.self_attn.v_proj.weight", {2, 8})
      .Add("layers.0.self_attn.q_proj.weight", {4, 8})
      .Add("layers.0.self_attn.k_proj.weight", {2, 8})
      .Add("norm.weight", {8})
      .Add("lm_head.weight", {5, 8});
  const auto tensors =
      MergeByName(model.named(), LlamaNames(nn::LlamaFamily::kPhi3));
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 3u);
  EXPECT_EQ((*tensors)[0].name, "model.layers.0.self_attn.qkv_proj.weight");
  EXPECT_EQ((*tensors)[0].sizes, (Shape{8, 8}));
  EXPECT_EQ((*tensors)[0].parts[0].name, "layers.0.self_attn.q_proj.weight");
  EXPECT_EQ((*tensors)[0].parts[2].name, "layers.0.self_attn.v_proj.weight");
  EXPECT_EQ((*tensors)[1].name, "model.norm.weight");
  EXPECT_EQ((*tensors)[2].name, "lm_head.weight");
}

TEST(WeightNamesTest, TheTableOfThePageIsThatOfPhi3) {
  // [names]
  const WeightNames names = {
      .rules = {
          {"*.q_proj.weight", "model.*.qkv_proj.weight", 0},
          {"*.k_proj.weight", "model.*.qkv_proj.weight", 1},
          {"*.v_proj.weight", "model.*.qkv_proj.weight", 2},
          {"*.gate_proj.weight", "model.*.gate_up_proj.weight", 0},
          {"*.up_proj.weight", "model.*.gate_up_proj.weight", 1},
          {"lm_head.*", "lm_head.*"},
          {"*", "model.*"},
      }};
  // [/names]
  nn::Llama model({.family = nn::LlamaFamily::kPhi3, .layers = 2});
  const auto expected =
      MergeByName(model.NamedParameters(), LlamaNames(nn::LlamaFamily::kPhi3));
  const auto got = MergeByName(model.NamedParameters(), names);
  ASSERT_TRUE(got.ok()) << got.status();
  ASSERT_EQ(got->size(), expected->size());
  for (size_t i = 0; i < got->size(); ++i) {
    EXPECT_EQ((*got)[i].name, (*expected)[i].name);
    EXPECT_EQ((*got)[i].parts.size(), (*expected)[i].parts.size());
  }
}

TEST(WeightNamesTest, TransposesMatricesAlone) {
  Parameters model;
  model.Add("k.weight", {2, 8})
      .Add("q.weight", {4, 8})
      .Add("q.bias", {4})
      .Add("k.bias", {2});
  const auto tensors = MergeByName(
      model.named(), {.rules = {{"q.*", "qk.*", 0, /*transposed=*/true},
                                {"k.*", "qk.*", 1, /*transposed=*/true}}});
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 2u);
  EXPECT_EQ((*tensors)[0].name, "qk.weight");
  EXPECT_EQ((*tensors)[0].sizes, (Shape{6, 8}));
  EXPECT_EQ((*tensors)[0].StoredSizes(), (Shape{8, 6}));
  EXPECT_EQ((*tensors)[1].StoredSizes(), (Shape{6}));
}

TEST(WeightNamesTest, NamesParametersThatCannotBeMerged) {
  const auto error = [](const Parameters& model, const WeightNames& names) {
    const absl::Status status = MergeByName(model.named(), names).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const WeightNames both = {.rules = {{"a", "x", 0}, {"b", "x", 1}}};
  Parameters other_width;
  other_width.Add("a", {2, 3}).Add("b", {2, 4});
  EXPECT_THAT(error(other_width, both), HasSubstr("tensor \"x\""));
  Parameters other_type;
  other_type.Add("a", {2, 3}).Add("b", {2, 3}, kBFloat16);
  EXPECT_THAT(error(other_type, both), HasSubstr("b is bf16[2, 3]"));
  Parameters alone;
  alone.Add("b", {2, 3}).Add("c", {2, 3});
  EXPECT_THAT(error(alone, both), HasSubstr("no tensor is part 0"));
  Parameters mixed;
  mixed.Add("a", {2, 3}).Add("b", {2, 3});
  EXPECT_THAT(error(mixed, {.rules = {{"a", "x", 0, true}, {"b", "x", 1}}}),
              HasSubstr("b is not transposed, others are"));
  Parameters two;
  two.Add("a", {2}).Add("b", {2});
  EXPECT_THAT(error(two, {.rules = {{"*", "x"}}}),
              HasSubstr("a and b are both part 0"));
  EXPECT_THAT(error(two, {.rules = {{"a", "*"}}}), HasSubstr("more stars"));
  EXPECT_THAT(error(two, {.rules = {{"a", "x", -1}}}),
              HasSubstr("a is part -1"));
  EXPECT_THAT(error(two, {.rules = {{"a", "x", 1 << 30}}}),
              HasSubstr("a is part 1073741824"));
}

}  // namespace
}  // namespace crosshatch::checkpoint
