// SPDX-License-Identifier: Apache-2.0

// The layers of this directory on one rank. layers_mesh_test.cc tests them on
// several.

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "crosshatch/nn/layers/containers.h"
#include "crosshatch/nn/layers/conv.h"
#include "crosshatch/nn/layers/gelu.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/layers/norm.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

std::vector<float> Values(const Tensor& t) { return t.ToVector<float>(); }

void SetTo(const std::shared_ptr<Parameter>& parameter,
           const std::vector<float>& values) {
  parameter->set_data(FromValues<float>(parameter->data().sizes(), values));
}

// The rows have mean 2 and variance 1, so the result is exact without eps.
TEST(LayerNormTest, NormalizesTheLastDim) {
  LayerNorm norm(2, {.eps = 0});
  SetTo(norm.weight(), {2, 3});
  SetTo(norm.bias(), {10, 20});
  const Tensor x = FromValues<float>({2, 2}, {1, 3, 7, 5});
  EXPECT_THAT(Values(norm.Forward(x)), ElementsAre(8, 23, 12, 17));
  LayerNorm plain(2, {.eps = 0, .weight = false, .bias = false});
  EXPECT_TRUE(plain.NamedParameters().empty());
  EXPECT_THAT(Values(plain.Forward(x)), ElementsAre(-1, 1, 1, -1));
}

TEST(LayerNormTest, ComputesInTheWiderDType) {
  LayerNorm norm(2, {.eps = 0});
  SetTo(norm.weight(), {1, 1});
  SetTo(norm.bias(), {0.25f, 0.25f});
  const Tensor x = ToDType(FromValues<float>({1, 2}, {1, 3}), kBFloat16);
  const Tensor y = norm.Forward(x);
  EXPECT_EQ(y.dtype(), kBFloat16);
  EXPECT_THAT(Values(y), ElementsAre(-0.75f, 1.25f));
}

TEST(LayerNormDeathTest, NamesTheExpectedShapes) {
  LayerNorm norm(4);
  EXPECT_DEATH((void)norm.Forward(Ones({2, 3})),
               "a LayerNorm of 4 takes floating point of \\[..., 4\\], not "
               "f32\\[2, 3\\]");
}

// Two groups of two channels with two pixels each.
TEST(GroupNormTest, NormalizesGroups) {
  GroupNorm norm(2, 4, {.eps = 0});
  SetTo(norm.weight(), {1, 1, 2, 2});
  SetTo(norm.bias(), {0, 1, 0, 0});
  const Tensor x =
      FromValues<float>({1, 4, 1, 2}, {1, 1, 3, 3, 10, 20, 20, 10});
  EXPECT_THAT(Values(norm.Forward(x)), ElementsAre(-1, -1, 2, 2, -2, 2, 2, -2));
  GroupNorm plain(1, 4, {.eps = 0, .affine = false});
  EXPECT_TRUE(plain.NamedParameters().empty());
  EXPECT_EQ(plain.Forward(x).sizes(), x.sizes());
}

TEST(GeluTest, HasTwoForms) {
  const Tensor x = FromValues<float>({3}, {-1, 0, 2});
  std::vector<float> exact;
  std::vector<float> by_tanh;
  for (const double v : {-1.0, 0.0, 2.0}) {
    exact.push_back(
        static_cast<float>(v * 0.5 * std::erfc(-v / std::sqrt(2.0))));
    by_tanh.push_back(
        static_cast<float>(v * 0.5 *
                           (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) *
                                          (v + 0.044715 * v * v * v)))));
  }
  Gelu gelu;
  Gelu tanh_form(GeluForm::kTanh);
  EXPECT_THAT(Values(gelu.Forward(x)), Pointwise(FloatNear(1e-6f), exact));
  EXPECT_THAT(Values(tanh_form.Forward(x)),
              Pointwise(FloatNear(1e-6f), by_tanh));
  EXPECT_GT(std::abs(exact[0] - by_tanh[0]), 1e-5f);
}

TEST(ConvTest, HasAWeightAndABias) {
  Conv2d conv(2, 4, {1, 2}, {.windows = {.stride = {1, 2}}, .groups = 2});
  EXPECT_EQ(conv.weight()->data().sizes(), (Shape{4, 1, 1, 2}));
  SetTo(conv.weight(), {1, 1, 1, -1, 1, 1, 1, -1});
  SetTo(conv.bias(), {0, 0, 0, 100});
  const Tensor x = FromValues<float>({1, 2, 1, 4}, {1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_THAT(Values(conv.Forward(x)),
              ElementsAre(3, 7, -1, -1, 11, 15, 99, 99));
  Conv1d without(1, 1, 2, {}, /*bias=*/false);
  EXPECT_EQ(without.NamedParameters().size(), 1u);
  SetTo(without.weight(), {1, -1});
  EXPECT_THAT(Values(without.Forward(FromValues<float>({1, 1, 3}, {5, 3, 2}))),
              ElementsAre(2, 1));
}

TEST(ConvTest, PatchesAreEmbeddedWithoutACopy) {
  Conv2d embed(3, 5, {2, 2}, {.windows = {.stride = {2, 2}}});
  ASSERT_TRUE(embed.NamedParameters().size() == 2 &&
              embed.Materialize({.seed = 1}).ok());
  const Tensor y = embed.Forward(Ones({2, 3, 4, 6}));
  const Tensor tokens = Transpose(Flatten(y, 2), 1, 2);
  EXPECT_EQ(tokens.sizes(), (Shape{2, 6, 5}));
  EXPECT_TRUE(tokens.is_contiguous());
  EXPECT_EQ(tokens.storage(), y.storage());
}

TEST(SequentialTest, RunsOneAfterTheOther) {
  Sequential both;
  EXPECT_THAT(Values(both.Forward(Ones({1, 2}))), ElementsAre(1, 1));
  SetTo(both.Add<Linear>(2, 1).weight(), {2, 3});
  SetTo(both.Add<Linear>(1, 2).weight(), {1, -1});
  EXPECT_EQ(both.size(), 2u);
  EXPECT_EQ(both[1].FullName(), "1");
  EXPECT_THAT(Values(both.Forward(Ones({1, 2}))), ElementsAre(5, -5));
}

/// Calls the modules of a list in reverse order.
class Reversed final : public Module {
 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    Tensor x = inputs[0];
    for (size_t i = blocks_.size(); i-- > 0;) x = blocks_[i].Forward(x);
    return {x};
  }

 public:
  ModuleList<Linear>& blocks_ = Make<ModuleList<Linear>>("blocks");
};

TEST(ModuleListTest, HoldsModulesOfAKind) {
  Reversed model;
  SetTo(model.blocks_.Add(1, 2).weight(), {1, 2});
  SetTo(model.blocks_.Add(1, 1).weight(), {3});
  std::vector<std::string> names;
  for (Linear& block : model.blocks_) names.push_back(block.FullName());
  EXPECT_THAT(names, ElementsAre("blocks.0", "blocks.1"));
  EXPECT_EQ(model.NamedParameters()[0].name, "blocks.0.weight");
  EXPECT_THAT(Values(model.Forward(Ones({1, 1}))), ElementsAre(3, 6));
}

TEST(ModuleListDeathTest, HasNoMoreThanWereAdded) {
  Reversed model;
  model.blocks_.Add(1, 1);
  EXPECT_DEATH((void)model.blocks_[1],
               HasSubstr("module 1 of the 1 in blocks (ModuleList)"));
  Sequential both;
  EXPECT_DEATH((void)both[0], HasSubstr("module 0 of the 0 in Sequential"));
}

TEST(ModuleListDeathTest, IsNotCalled) {
  ModuleList<Linear> list;
  EXPECT_DEATH((void)list.Forward(Ones({1})),
               HasSubstr("a ModuleList is not called"));
}

}  // namespace
}  // namespace crosshatch::nn
