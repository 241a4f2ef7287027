// SPDX-License-Identifier: Apache-2.0

/// \file
/// The op of docs/write_an_op.md, written and tested as a user would: with
/// public headers and public targets only. The page prints the text between
/// [name] and [/name].
/// [/name] is printed there.

#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/dispatch/register_op_rule.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/op_rule_check.h"
#include "crosshatch/dtensor/rules/op_rule.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/gradcheck_testutil.h"
#include "crosshatch/tensor/launch.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/ops/saving_node.h"
#include "crosshatch/tensor/rank_context.h"
#include "gtest/gtest.h"

namespace user {
namespace {

namespace ch = crosshatch;

// [op]
// The entropy of the softmax of each row of logits: [..., n] to [...].
class EntropyOp final : public ch::Op {
 public:
  static constexpr ch::OpInfo kInfo = {"user_entropy"};
  const ch::OpInfo& info() const override { return kInfo; }

  ch::TensorList Forward(ch::TensorSpan inputs) const override {
    ch::NoGrad no_grad;  // The op has a gradient of its own.
    const ch::Tensor& x = inputs[0];
    CH_CHECK(x.ndim() > 0 && ch::IsFloatingPoint(x.dtype()))
        << kInfo.name << " of " << x.Describe() << ": rows of logits";
    const ch::Tensor logs = ch::LogSoftmax(x);
    return {ch::Neg(ch::Sum(ch::Mul(ch::Exp(logs), logs), {x.ndim() - 1}))};
  }

  std::shared_ptr<ch::Node> Differentiate(
      ch::TensorSpan inputs, ch::TensorSpan outputs) const override;
};
// [/op]

// [gradient]
std::shared_ptr<ch::Node> EntropyOp::Differentiate(
    ch::TensorSpan inputs, ch::TensorSpan outputs) const {
  auto node = ch::MakeNode<2>(kInfo, [](const auto& self, ch::TensorSpan grads,
                                        ch::GradientSlots& slots) {
    const ch::Tensor logs = ch::LogSoftmax(self.Saved(0));
    const ch::Tensor entropy = ch::Unsqueeze(self.Saved(1), -1);
    const ch::Tensor by_logit =
        ch::Neg(ch::Mul(ch::Exp(logs), ch::Add(logs, entropy)));
    slots.Put(0, ch::Mul(by_logit, ch::Unsqueeze(grads[0], -1)));
  });
  node->Save(0, inputs[0]);
  node->SaveOutput(1, outputs[0]);
  return node;
}
// [/gradient]

// [function]
ch::Tensor Entropy(const ch::Tensor& x) {
  return ch::Apply1(EntropyOp(), {&x, 1});
}
// [/function]

// [rule]
// A row is whole on a rank; the dims before it may be split in any way.
ch::RuleResult EntropyRule(const ch::RuleCall& call) {
  return ch::SolveFactors(call, ch::Einsum(call, "...N->..."));
}

// Every rank does so before it uses the op on distributed tensors.
void RegisterUserOps() { ch::RegisterOpRule(EntropyOp::kInfo, EntropyRule); }
// [/rule]

TEST(EntropyTest, Values) {
  const ch::Tensor x =
      ch::FromValues<float>({2, 2}, std::vector<float>{5, 5, 0, 1000});
  const std::vector<float> y = Entropy(x).ToVector<float>();
  EXPECT_FLOAT_EQ(y[0], std::log(2.0f));
  EXPECT_FLOAT_EQ(y[1], 0);
}

// [kernel]
// a / (1 + e^(-slope * a)), by a kernel of the program's own.
class SwishOp final : public ch::Op {
 public:
  static constexpr ch::OpInfo kInfo = {"user_swish"};
  explicit SwishOp(double slope) : slope_(slope) {}
  const ch::OpInfo& info() const override { return kInfo; }

  ch::TensorList Forward(ch::TensorSpan inputs) const override {
    const ch::Tensor x = ch::Contiguous(inputs[0]);
    CH_CHECK(x.dtype() == ch::kFloat32 || x.dtype() == ch::kFloat64)
        << kInfo.name << " of " << x.Describe() << ": f32 or f64";
    CH_CHECK(x.device().kind() != ch::Device::Kind::kCuda)
        << kInfo.name << " has a kernel for the CPU alone";
    const ch::Tensor y = ch::Empty(x.sizes(), x.dtype());
    if (x.dtype() == ch::kFloat32) Launch<float>(x, y);
    if (x.dtype() == ch::kFloat64) Launch<double>(x, y);
    return {y};
  }

  std::shared_ptr<ch::Node> Differentiate(ch::TensorSpan inputs,
                                          ch::TensorSpan) const override {
    auto node = ch::MakeNode<1>(
        kInfo, [slope = slope_](const auto& self, ch::TensorSpan grads,
                                ch::GradientSlots& slots) {
          const ch::Tensor ax = ch::Mul(self.Saved(0), slope);
          const ch::Tensor s = ch::Sigmoid(ax);
          const ch::Tensor by_x =
              ch::Mul(s, ch::Add(ch::Mul(ax, ch::Sub(1.0, s)), 1.0));
          slots.Put(0, ch::Mul(grads[0], by_x));
        });
    node->Save(0, inputs[0]);
    return node;
  }

  // Bits: two slopes that differ in the tenth digit are two keys.
  void AppendKey(ch::OpKey& key) const override {
    key.push_back(std::bit_cast<int64_t>(slope_));
  }

 private:
  template <typename T>
  void Launch(const ch::Tensor& x, const ch::Tensor& y) const {
    ch::LaunchKernel([from = x.data<T>(), to = y.data<T>(), n = x.numel(),
                      slope = slope_](ch::KernelContext&) {
      for (int64_t i = 0; i < n; ++i) {
        const double a = from[i];
        to[i] = static_cast<T>(a / (1 + std::exp(-slope * a)));
      }
    });
  }

  const double slope_;
};
// [/kernel]

TEST(SwishTest, Gradients) {
  const auto run = [](ch::TensorSpan in) {
    return ch::Apply1(SwishOp(0.75), in);
  };
  EXPECT_TRUE(ch::Gradcheck(run, {ch::RandomInput({3, 4}, /*seed=*/1)}));
  EXPECT_TRUE(ch::GradGradcheck(run, {ch::RandomInput({3, 4}, /*seed=*/1)}));
}

TEST(SwishTest, ComputesInTheOrderOfTheStream) {
  const ch::Tensor x = ch::FromValues<float>({2}, std::vector<float>{1, -2});
  const ch::Tensor y = ch::Add(ch::Apply1(SwishOp(1), {&x, 1}), 1.0);
  const std::vector<float> values = y.ToVector<float>();
  // Three roundings of numbers below 2.
  EXPECT_NEAR(values[0], 1 + 1 / (1 + std::exp(-1.0)), 3 * 0x1p-23);
  EXPECT_NEAR(values[1], 1 - 2 / (1 + std::exp(2.0)), 3 * 0x1p-23);
}

// [gradcheck]
TEST(EntropyTest, Gradients) {
  const auto run = [](ch::TensorSpan in) { return Entropy(in[0]); };
  EXPECT_TRUE(ch::Gradcheck(run, {ch::RandomInput({3, 4}, /*seed=*/1)}));
  EXPECT_TRUE(ch::GradGradcheck(run, {ch::RandomInput({3, 4}, /*seed=*/1)}));
}
// [/gradcheck]

// [rule_check]
TEST(EntropyTest, Rule) {
  const auto run = [](ch::TensorSpan in) { return Entropy(in[0]); };
  const ch::RuleFamily family = {
      .name = "entropy",
      .cases = {{"matrix", {{{5, 3}, ch::CaseInput::kFraction}}, run},
                {"batch", {{{2, 3, 4}, ch::CaseInput::kFraction}}, run},
                {"vector", {{{4}, ch::CaseInput::kFraction}}, run}},
      .twice = true,
      .on_each_rank = RegisterUserOps};
  for (const std::vector<int>& mesh :
       {std::vector<int>{2}, std::vector<int>{3}, std::vector<int>{2, 2}}) {
    const ch::RuleTally tally = ch::CheckRules(mesh, family);
    EXPECT_TRUE(tally.ops.contains(&EntropyOp::kInfo));
  }
}
// [/rule_check]

}  // namespace
}  // namespace user
