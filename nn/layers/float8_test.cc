// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/layers/float8.h"

#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/nn/activation_checkpoint.h"
#include "crosshatch/nn/layers/embedding.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using ::testing::ElementsAre;

/// Returns tensor number `salt`, by the formula in testdata/make.py.
Tensor Fill(const Shape& sizes, int64_t salt) {
  std::vector<float> values;
  for (int64_t i = 0; i < NumElements(sizes); ++i) {
    values.push_back(static_cast<float>((37 * i + 11 * salt) % 101 - 50) / 64);
  }
  return FromValues<float>(sizes, values);
}

using Golden = std::map<std::string, std::vector<double>>;

Golden ReadGolden() {
  std::ifstream file("nn/layers/testdata/float8.txt");
  Golden golden;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream text(line);
    std::string recipe, name;
    text >> recipe >> name;
    std::vector<double>& values = golden[absl::StrCat(recipe, " ", name)];
    double value = 0;
    while (text >> value) values.push_back(value);
  }
  return golden;
}

// The float8 values are the same bits, so the results differ only by the
// rounding of sums of at most 32 terms below 1 and of scales.
TEST(Float8LinearTest, ComputesWhatTorchaoDoes) {
  const Golden golden = ReadGolden();
  ASSERT_EQ(golden.size(), 6u);
  for (const auto recipe :
       {Float8Recipe::kTensorwise, Float8Recipe::kRowwise}) {
    for (const bool recomputes : {false, true}) {
      Linear linear(32, 16);
      linear.weight()->set_data(Fill({16, 32}, 1));
      linear.set_float8(recipe);
      if (recomputes) {
        ASSERT_TRUE(CheckpointActivations(linear).ok());
      }
      Tensor x = Fill({3, 5, 32}, 0).set_requires_grad(true);
      const Tensor y = linear.Forward(x);
      ASSERT_TRUE(Backward(y, {.gradient = Fill({3, 5, 16}, 3)}).ok());
      const std::map<std::string, Tensor> actual = {
          {"y", y}, {"x", x.grad()}, {"weight", linear.weight()->grad()}};
      for (const auto& [name, tensor] : actual) {
        const std::string key = absl::StrCat(
            recipe == Float8Recipe::kTensorwise ? "tensorwise " : "rowwise ",
            name);
        const std::vector<double> values = tensor.ToVector<double>();
        const std::vector<double>& expected = golden.at(key);
        ASSERT_EQ(values.size(), expected.size());
        for (size_t i = 0; i < values.size(); ++i) {
          ASSERT_NEAR(values[i], expected[i], 32 * 38 * 0x1p-24)
              << key << " " << i;
        }
      }
    }
  }
}

class Net final : public Module {
 public:
  Net()
      : embedding_(32, 16),
        first_(16, 48),
        odd_(48, 20),
        last_(20, 16),
        head_(embedding_.weight()) {
    RegisterModule("embedding", embedding_);
    RegisterModule("first", first_);
    RegisterModule("odd", odd_);
    RegisterModule("blocks.0.last", last_);
    RegisterModule("head", head_);
  }
  const char* type_name() const override { return "Net"; }
  Linear& first() { return first_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override { return {inputs[0]}; }

 private:
  Embedding embedding_;
  Linear first_;
  Linear odd_;
  Linear last_;
  Linear head_;
};

TEST(Float8LinearTest, ConvertsWhatFitsAndListsTheRest) {
  Net net;
  const Float8Conversion all = ConvertToFloat8Training(net);
  EXPECT_THAT(all.converted, ElementsAre("first"));
  EXPECT_EQ(all.ToString(),
            "1 linear layers in float8; skipped: odd (48 to 20 features, not "
            "both multiples of 16), blocks.0.last (20 to 16 features, not both "
            "multiples of 16), head (its weight is tied with embedding "
            "(Embedding))");
  EXPECT_THAT(Float8Weights(net, Float8Recipe::kTensorwise),
              ElementsAre(net.first().weight().get()));
  EXPECT_TRUE(Float8Weights(net, Float8Recipe::kRowwise).empty());
  net.first().set_float8(std::nullopt);
  const Float8Conversion none = ConvertToFloat8Training(
      net, {.recipe = Float8Recipe::kRowwise, .skip = {"**.last", "fir*"}});
  EXPECT_TRUE(none.converted.empty());
  EXPECT_EQ(none.skipped[0].reason, "matches fir*");
  EXPECT_FALSE(net.first().float8().has_value());
}

}  // namespace
}  // namespace crosshatch::nn
