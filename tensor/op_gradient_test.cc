// SPDX-License-Identifier: Apache-2.0

/// \file
/// The requirements on an op's gradient (op.h, node.h), with ops that violate
/// them.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/node.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/ops/saving_node.h"
#include "crosshatch/tensor/rank_context.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

Tensor Leaf(const std::vector<double>& values) {
  return FromValues<double>({static_cast<int64_t>(values.size())}, values)
      .set_requires_grad(true);
}

absl::Status BackwardOfSum(const Tensor& a) { return Backward(Sum(a)); }

// A copy whose gradient is wrong in a given way.
class FaultyOp final : public Op {
 public:
  enum class Fault {
    kNone,
    kDifferentiateIsMissing,
    kGivesNothing,
    kGivesZero,
    kSlot,
    kNegativeSlot,
    kSizes,
    kDType,
    kReadsUnsaved,
    kReadsBeyond,
  };
  static constexpr OpInfo kInfo = {"faulty"};
  explicit FaultyOp(Fault fault) : fault_(fault) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override {
    const NoGrad no_grad;
    return {Clone(inputs[0])};
  }
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override {
    if (fault_ == Fault::kDifferentiateIsMissing) {
      return Op::Differentiate(inputs, outputs);
    }
    return MakeNode<1>(kInfo, [fault = fault_](const auto& self, TensorSpan g,
                                               GradientSlots& slots) {
      switch (fault) {
        case Fault::kNone:
        case Fault::kDifferentiateIsMissing:
          return slots.Put(0, g[0]);
        case Fault::kGivesNothing:
          return;
        case Fault::kGivesZero:
          return slots.Put(0, Tensor());
        case Fault::kSlot:
          return slots.Put(1, g[0]);
        case Fault::kNegativeSlot:
          return slots.Put(-1, g[0]);
        case Fault::kSizes:
          return slots.Put(0, Sum(g[0]));
        case Fault::kDType:
          return slots.Put(0, ToDType(g[0], kFloat32));
        case Fault::kReadsUnsaved:
          return slots.Put(0, self.Saved(0));
        case Fault::kReadsBeyond:
          return slots.Put(0, self.Saved(1));
      }
    });
  }

 private:
  const Fault fault_;
};

absl::Status BackwardThrough(FaultyOp::Fault fault) {
  // The input is not a leaf, so the graph has its sizes.
  const Tensor between = Mul(Leaf({1, 2}), 2.0);
  return BackwardOfSum(Apply1(FaultyOp(fault), {&between, 1}));
}

TEST(OpGradientTest, NamesTheOpThatGaveAWrongGradient) {
  using enum FaultyOp::Fault;
  EXPECT_TRUE(BackwardThrough(kNone).ok());
  EXPECT_TRUE(BackwardThrough(kGivesZero).ok());
  const auto refuses = [](FaultyOp::Fault fault, const char* text) {
    EXPECT_DEATH(BackwardThrough(fault).IgnoreError(), text);
  };
  refuses(kSlot, "op faulty uses slot 1: .*inputs, of which there are 1");
  refuses(kNegativeSlot, "op faulty uses slot -1");
  refuses(kSizes,
          "op faulty gave the gradient f64.. on cpu for its input 0, which is "
          "f64.2.");
  refuses(kDType,
          "op faulty gave the gradient f32.2. on cpu for its input 0, which is "
          "f64.2.");
  refuses(kReadsUnsaved, "faulty: .* was never saved; Save it");
  refuses(kReadsBeyond, "faulty: saved tensor 1 of a node that keeps 1");
}

TEST(OpGradientTest, RefusesASizeThatALeafDoesNotHave) {
  const Tensor leaf = Leaf({1, 2});
  const Tensor y = Apply1(FaultyOp(FaultyOp::Fault::kSizes), {&leaf, 1});
  EXPECT_DEATH(BackwardOfSum(y).IgnoreError(), "op faulty gave the gradient");
  // The gradient of a leaf is converted.
  const Tensor z = Apply1(FaultyOp(FaultyOp::Fault::kDType), {&leaf, 1});
  ASSERT_TRUE(BackwardOfSum(z).ok());
  EXPECT_EQ(leaf.grad().dtype(), kFloat64);
}

TEST(OpGradientTest, RefusesAnOpThatDropsAGradient) {
  using enum FaultyOp::Fault;
  EXPECT_DEATH(BackwardThrough(kGivesNothing).IgnoreError(),
               "op faulty gave no gradient for its input 0");
  EXPECT_DEATH(BackwardThrough(kDifferentiateIsMissing).IgnoreError(),
               "op faulty has no gradient, and an input of it requires one");
  const NoGrad no_grad;
  const Tensor leaf = Leaf({1, 2});
  EXPECT_FALSE(
      Apply1(FaultyOp(kDifferentiateIsMissing), {&leaf, 1}).requires_grad());
}

}  // namespace
}  // namespace crosshatch
