// SPDX-License-Identifier: Apache-2.0

// Compares the results and gradients of layers with weights to PyTorch's, which
// testdata/make.py writes.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "crosshatch/nn/layers/conv.h"
#include "crosshatch/nn/layers/gelu.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/layers/norm.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

// Returns tensor number `salt` of a layer, by the formula in make.py.
Tensor Fill(const Shape& sizes, int64_t salt) {
  std::vector<float> values;
  for (int64_t i = 0; i < NumElements(sizes); ++i) {
    values.push_back(static_cast<float>((37 * i + 11 * salt) % 101 - 50) / 64);
  }
  return FromValues<float>(sizes, values);
}

struct Layer {
  std::string name;
  Shape sizes;
  std::function<std::unique_ptr<Module>()> make;
};

template <typename M, typename... Args>
std::function<std::unique_ptr<Module>()> Of(Args... args) {
  return [=] { return std::make_unique<M>(args...); };
}

std::vector<Layer> Layers() {
  const LinearOptions with_bias = {.bias = true};
  return {{"layer_norm",
           {2, 3, 5},
           Of<LayerNorm>(5, LayerNormOptions{.eps = 1e-3})},
          {"layer_norm_without_bias",
           {4, 6},
           Of<LayerNorm>(6, LayerNormOptions{.bias = false})},
          {"layer_norm_bare",
           {4, 6},
           Of<LayerNorm>(6, LayerNormOptions{.weight = false, .bias = false})},
          {"group_norm", {2, 6, 5}, Of<GroupNorm>(3, 6)},
          {"group_norm_of_images",
           {2, 4, 3, 2},
           Of<GroupNorm>(2, 4, GroupNormOptions{.eps = 1e-2})},
          {"rms_norm", {3, 7}, Of<RmsNorm>(7, 1e-5)},
          {"gelu", {40}, Of<Gelu>()},
          {"gelu_tanh", {40}, Of<Gelu>(GeluForm::kTanh)},
          {"linear", {2, 3, 5}, Of<Linear>(5, 4, with_bias)},
          {"conv1d",
           {2, 3, 9},
           Of<Conv1d>(3, 4, 3, Conv1dOptions{.stride = 2, .padding = 1})},
          {"conv1d_dilated",
           {1, 2, 9},
           Of<Conv1d>(2, 3, 2, Conv1dOptions{.dilation = 3}, false)},
          {"conv2d",
           {2, 3, 6, 5},
           Of<Conv2d>(3, 4, RowsCols{3, 2},
                      Conv2dOptions{
                          .windows = {.stride = {2, 1}, .padding = {1, 0}}})},
          {"conv2d_groups",
           {1, 4, 4, 4},
           Of<Conv2d>(4, 6, RowsCols{2, 2}, Conv2dOptions{.groups = 2})},
          {"conv2d_patches",
           {2, 3, 4, 6},
           Of<Conv2d>(3, 5, RowsCols{2, 2},
                      Conv2dOptions{.windows = {.stride = {2, 2}}})}};
}

using Tensors = std::map<std::string, std::vector<double>>;

// Returns PyTorch's tensors by layer.
std::map<std::string, Tensors> Goldens() {
  std::ifstream file("nn/layers/testdata/layers.txt");
  std::map<std::string, Tensors> goldens;
  std::string line;
  while (std::getline(file, line)) {
    std::stringstream words(line);
    std::string layer;
    std::string what;
    words >> layer >> what;
    std::vector<double>& values = goldens[layer][what];
    double value = 0;
    while (words >> value) values.push_back(value);
  }
  return goldens;
}

Tensors Compute(const Layer& layer) {
  const std::unique_ptr<Module> module = layer.make();
  for (const NamedParameter& named : module->NamedParameters()) {
    named.parameter->set_data(
        Fill(named.parameter->data().sizes(), named.name == "weight" ? 1 : 2));
  }
  Tensor x = Fill(layer.sizes, 0).set_requires_grad(true);
  const Tensor y = module->Forward(x);
  EXPECT_TRUE(Backward(Sum(Mul(y, Fill(y.sizes(), 3)))).ok());
  Tensors tensors = {{"y", y.ToVector<double>()},
                     {"x", x.grad().ToVector<double>()}};
  for (const NamedParameter& named : module->NamedParameters()) {
    tensors[named.name] = named.parameter->grad().ToVector<double>();
  }
  return tensors;
}

class LayersGoldenTest : public ::testing::TestWithParam<Layer> {};

TEST_P(LayersGoldenTest, IsThatOfPyTorch) {
  const Tensors expected = Goldens()[GetParam().name];
  const Tensors got = Compute(GetParam());
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [what, values] : expected) {
    ASSERT_TRUE(got.contains(what)) << what;
    ASSERT_EQ(got.at(what).size(), values.size()) << what;
    double largest = 1;
    for (const double value : values) {
      largest = std::max(largest, std::abs(value));
    }
    // Sums of at most 60 products below 1, in float32. A norm takes three such
    // steps.
    const double bound = 3 * 60 * 0x1p-24 * largest;
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(got.at(what)[i], values[i], bound) << what << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LayersGoldenTest, ::testing::ValuesIn(Layers()),
                         [](const auto& info) { return info.param.name; });

TEST(LayersGoldenFileTest, HasTheLayersOfThisTest) {
  EXPECT_EQ(Goldens().size(), Layers().size());
}

}  // namespace
}  // namespace crosshatch::nn
