// SPDX-License-Identifier: Apache-2.0

/// \file
/// Gradients of a tensor with several uses. Devices that fuse
/// (DeviceBackend::fuses) add them up within the kernels of products. All
/// values are small integers, so sums are exact in any order.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/gradcheck_testutil.h"
#include "crosshatch/tensor/ops/ops.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

constexpr int64_t kSize = 3;

// Returns integers from -3 to 3.
Tensor Integers(int seed) {
  std::vector<float> values;
  for (int i = 0; i < kSize * kSize; ++i) {
    values.push_back(static_cast<float>((seed * 5 + i * i * 3 + i) % 7 - 3));
  }
  return FromValues<float>({kSize, kSize}, values);
}

// Returns a number with the gradient Integers(seed) by y.
Tensor Weighed(const Tensor& y, int seed) {
  return Sum(Mul(y, Integers(seed)));
}

struct Use {
  const char* name;
  std::function<Tensor(const Tensor&)> run;
};

std::vector<Use> Uses() {
  return {
      {"product",
       [](const Tensor& h) { return Weighed(MatMul(h, Integers(1)), 2); }},
      {"other product",
       [](const Tensor& h) { return Weighed(MatMul(Integers(3), h), 4); }},
      {"square", [](const Tensor& h) { return Weighed(MatMul(h, h), 5); }},
      // Its gradient is also that of the product.
      {"residual",
       [](const Tensor& h) {
         return Weighed(Add(h, MatMul(h, Integers(6))), 7);
       }},
      {"transpose",
       [](const Tensor& h) { return Weighed(Transpose(h, 0, 1), 8); }},
      {"view",
       [](const Tensor& h) {
         return Weighed(MatMul(Integers(9), View(h, {kSize, kSize})), 10);
       }},
      {"part",
       [](const Tensor& h) {
         return Sum(MatMul(Slice(h, 0, 1, 3), Integers(11)));
       }},
  };
}

// Returns the gradients by x and by h = 2 x of the sum of uses.
std::vector<std::vector<float>> GradientsOf(const std::vector<Use>& uses,
                                            const BackwardOptions& options) {
  const Tensor x = Integers(12).set_requires_grad(true);
  const Tensor h = Mul(x, 2.0);
  Tensor sum;
  for (const Use& use : uses) {
    const Tensor y = use.run(h);
    sum = sum.defined() ? Add(sum, y) : y;
  }
  const auto gradients = Gradients(sum, {x, h}, options);
  EXPECT_TRUE(gradients.ok()) << gradients.status();
  EXPECT_TRUE(Backward(sum, options).ok());
  const std::vector<float> accumulated = x.grad().ToVector<float>();
  // A recorded gradient would refer to x, which owns it.
  x.set_grad(Tensor());
  return {(*gradients)[0].ToVector<float>(), (*gradients)[1].ToVector<float>(),
          accumulated};
}

// A use alone has nothing to share.
std::vector<std::vector<float>> SumOfEach(const std::vector<Use>& uses) {
  std::vector<std::vector<float>> sums(3, std::vector<float>(kSize * kSize, 0));
  for (const Use& use : uses) {
    const auto one = GradientsOf({use}, {.retain_graph = true});
    for (size_t i = 0; i < sums.size(); ++i) {
      for (size_t j = 0; j < sums[i].size(); ++j) sums[i][j] += one[i][j];
    }
  }
  return sums;
}

TEST(SharedGradientsTest, AreTheSumOfThoseOfEachUse) {
  const std::vector<Use> uses = Uses();
  const auto expect = [](const std::vector<Use>& some) {
    std::string names;
    for (const Use& use : some) absl::StrAppend(&names, use.name, ", ");
    const auto expected = SumOfEach(some);
    EXPECT_EQ(GradientsOf(some, {.retain_graph = true}), expected) << names;
    EXPECT_EQ(GradientsOf(some, {.create_graph = true}), expected) << names;
  };
  for (size_t i = 0; i < uses.size(); ++i) {
    for (size_t j = 0; j < uses.size(); ++j) {
      expect({uses[i], uses[j]});
      // Every use is first, second and last of three.
      expect({uses[i], uses[j], uses[(i + 2 * j + 1) % uses.size()]});
    }
  }
}

TEST(SharedGradientsTest, DoNotChangeWhatOthersHold) {
  const Tensor x = Integers(1).set_requires_grad(true);
  const Tensor h = Mul(x, 2.0);
  // After m, whose gradient is then h's sum, the product adds to it.
  const Tensor product = MatMul(h, Integers(2));
  const Tensor m = Add(h, Integers(3));
  const Tensor root = Add(m, product);
  const Tensor given = Integers(4);
  const BackwardOptions options = {.gradient = given, .retain_graph = true};
  const auto gradients = Gradients(root, {m, product, h}, options);
  ASSERT_TRUE(gradients.ok()) << gradients.status();
  const std::vector<float> expected = Integers(4).ToVector<float>();
  EXPECT_EQ(given.ToVector<float>(), expected);
  EXPECT_EQ((*gradients)[0].ToVector<float>(), expected);
  EXPECT_EQ((*gradients)[1].ToVector<float>(), expected);
  const std::vector<float> by_h =
      Add(given, MatMul(given, Transpose(Integers(2), 0, 1))).ToVector<float>();
  EXPECT_EQ((*gradients)[2].ToVector<float>(), by_h);
  // Twice through one graph.
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(Backward(root, options).ok());
  EXPECT_EQ(given.ToVector<float>(), expected);
  std::vector<float> by_x = by_h;
  for (float& value : by_x) value *= 4;
  EXPECT_EQ(x.grad().ToVector<float>(), by_x);
}

TEST(SharedGradientsTest, HaveGradients) {
  const TensorFunction fn = [](TensorSpan in) {
    const Tensor h = Square(in[0]);
    return Add(Add(MatMul(h, in[1]), MatMul(h, in[2])), Add(h, MatMul(h, h)));
  };
  const std::vector<TestInput> inputs = {
      RandomInput({2, 2}, 1), RandomInput({2, 2}, 2), RandomInput({2, 2}, 3)};
  EXPECT_TRUE(Gradcheck(fn, inputs));
  EXPECT_TRUE(GradGradcheck(fn, inputs));
}

}  // namespace
}  // namespace crosshatch
