// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/gradcheck_testutil.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

using ::testing::AssertionFailure;
using ::testing::AssertionResult;
using ::testing::AssertionSuccess;

// The error of central differences is h^2 f''' / 6 plus 2^-53 |f| / h. The
// tested functions and their third derivatives are of order 100 at most.
constexpr double kStep = 2e-6;
constexpr double kTolerance = 1e-7;

bool Close(double a, double b) {
  return std::abs(a - b) <=
         kTolerance * (1 + std::max(std::abs(a), std::abs(b)));
}

class TestSink final : public GradSink {
 public:
  TestSink(Tensor tensor, bool accumulate)
      : tensor_(std::move(tensor)), accumulate_(accumulate) {}

  GradDestination Acquire() override {
    return {tensor_, std::exchange(accumulate_, true)};
  }
  void Complete() override { ++completed_; }

  const Tensor& tensor() const { return tensor_; }
  int completed() const { return completed_; }

 private:
  Tensor tensor_;
  bool accumulate_;
  int completed_ = 0;
};

TensorList MakeLeaves(const std::vector<TestInput>& inputs, TestLayout layout) {
  TensorList leaves;
  for (const TestInput& input : inputs) {
    leaves.push_back(MakeInput(input, layout).set_requires_grad(true));
  }
  return leaves;
}

std::vector<double> ValueOf(const TensorFunction& fn,
                            const std::vector<TestInput>& inputs) {
  NoGrad no_grad;
  TensorList tensors;
  for (const TestInput& input : inputs) {
    tensors.push_back(MakeInput(input, TestLayout::kContiguous));
  }
  return fn(tensors).ToVector<double>();
}

/// Returns the gradient; zeros if the result does not depend on the input.
std::vector<double> GradOf(const Tensor& gradient, const Tensor& leaf) {
  if (!gradient.defined()) {
    return std::vector<double>(static_cast<size_t>(leaf.numel()), 0);
  }
  CH_CHECK(gradient.sizes() == leaf.sizes());
  return gradient.ToVector<double>();
}

/// jacobian[i][j][e]: of output element j by element e of input i.
using Jacobian = std::vector<std::vector<std::vector<double>>>;

Jacobian NumericJacobian(const TensorFunction& fn,
                         std::vector<TestInput> inputs, size_t outputs) {
  Jacobian jacobian;
  for (TestInput& input : inputs) {
    auto& rows = jacobian.emplace_back(
        outputs, std::vector<double>(input.values.size()));
    for (size_t e = 0; e < input.values.size(); ++e) {
      const double value = input.values[e];
      const double above = value + kStep;
      const double below = value - kStep;
      input.values[e] = above;
      const std::vector<double> high = ValueOf(fn, inputs);
      input.values[e] = below;
      const std::vector<double> low = ValueOf(fn, inputs);
      input.values[e] = value;
      for (size_t j = 0; j < outputs; ++j) {
        rows[j][e] = (high[j] - low[j]) / (above - below);
      }
    }
  }
  return jacobian;
}

AssertionResult Compare(const char* what, const std::vector<double>& got,
                        const std::vector<double>& expected) {
  if (got.size() != expected.size()) {
    return AssertionFailure() << what << ": " << got.size()
                              << " elements instead of " << expected.size();
  }
  for (size_t e = 0; e < got.size(); ++e) {
    if (!Close(got[e], expected[e])) {
      return AssertionFailure() << what << ", element " << e << ": " << got[e]
                                << " instead of " << expected[e];
    }
  }
  return AssertionSuccess();
}

AssertionResult CheckJacobian(const TensorFunction& fn,
                              const std::vector<TestInput>& inputs,
                              const Jacobian& numeric, TestLayout layout) {
  TensorList leaves = MakeLeaves(inputs, layout);
  const Tensor out = fn(leaves);
  for (int64_t j = 0; j < out.numel(); ++j) {
    std::vector<double> one_hot(static_cast<size_t>(out.numel()), 0);
    one_hot[static_cast<size_t>(j)] = 1;
    CH_CHECK_OK(
        Backward(out, {.gradient = FromValues<double>(out.sizes(), one_hot),
                       .retain_graph = true}));
    for (size_t i = 0; i < leaves.size(); ++i) {
      AssertionResult result =
          Compare("jacobian", GradOf(leaves[i].grad(), leaves[i]),
                  numeric[i][static_cast<size_t>(j)]);
      if (!result) {
        return result << ", by input " << i << " of output element " << j
                      << " in layout " << static_cast<int>(layout);
      }
      leaves[i].set_grad(Tensor());
    }
  }
  return AssertionSuccess();
}

AssertionResult CheckAccumulation(const TensorFunction& fn,
                                  const std::vector<TestInput>& inputs,
                                  const Tensor& weights) {
  TensorList leaves = MakeLeaves(inputs, TestLayout::kContiguous);
  const Tensor out = fn(leaves);
  const TensorList gradients =
      Gradients(out, leaves, {.gradient = weights, .retain_graph = true})
          .value();
  for (const Tensor& leaf : leaves) CH_CHECK(!leaf.grad().defined());
  CH_CHECK_OK(Backward(out, {.gradient = weights, .retain_graph = true}));
  std::vector<std::vector<double>> once;
  for (size_t i = 0; i < leaves.size(); ++i) {
    once.push_back(GradOf(leaves[i].grad(), leaves[i]));
    AssertionResult result =
        Compare("Gradients", GradOf(gradients[i], leaves[i]), once[i]);
    if (!result) return result << ", input " << i;
  }
  CH_CHECK_OK(Backward(out, {.gradient = weights}));
  for (size_t i = 0; i < leaves.size(); ++i) {
    std::vector<double> twice = once[i];
    for (double& value : twice) value *= 2;
    AssertionResult result =
        Compare("two Backwards", GradOf(leaves[i].grad(), leaves[i]), twice);
    if (!result) return result << ", input " << i;
  }

  for (bool accumulate : {false, true}) {
    for (TestLayout layout :
         {TestLayout::kContiguous, TestLayout::kEveryOther}) {
      TensorList sunk = MakeLeaves(inputs, TestLayout::kContiguous);
      std::vector<std::shared_ptr<TestSink>> sinks;
      for (size_t i = 0; i < sunk.size(); ++i) {
        TestInput old = inputs[i];
        std::fill(old.values.begin(), old.values.end(), 0.25);
        sinks.push_back(
            std::make_shared<TestSink>(MakeInput(old, layout), accumulate));
        SetGradSink(sunk[i], sinks[i]);
      }
      CH_CHECK_OK(Backward(fn(sunk), {.gradient = weights}));
      for (size_t i = 0; i < sunk.size(); ++i) {
        if (gradients[i].defined() != (sinks[i]->completed() == 1)) {
          return AssertionFailure() << "sink " << i << " was completed "
                                    << sinks[i]->completed() << " times";
        }
        if (!gradients[i].defined()) continue;
        std::vector<double> expected = once[i];
        if (accumulate) {
          for (double& value : expected) value += 0.25;
        }
        AssertionResult result =
            Compare("sink", sinks[i]->tensor().ToVector<double>(), expected);
        if (!result) {
          return result << ", input " << i << ", accumulate " << accumulate;
        }
      }
    }
  }
  return AssertionSuccess();
}

}  // namespace

TestInput RandomInput(ShapeView sizes, uint64_t seed, double low, double high) {
  TestInput input{Shape(sizes.begin(), sizes.end()), {}};
  uint64_t state = seed * 7919 % 997;
  for (int64_t i = 0; i < NumElements(sizes); ++i) {
    state = (state + 619) % 997;  // A prime step: each place once.
    double value =
        low + (high - low) * (static_cast<double>(state) + 0.5) / 997;
    if (std::abs(value) < 1e-4) value = high / 997 + 1e-3;
    input.values.push_back(value);
  }
  return input;
}

Tensor MakeInput(const TestInput& input, TestLayout layout, DType dtype) {
  NoGrad no_grad;
  const size_t ndim = input.sizes.size();
  const Tensor source =
      FromValues<double>(input.sizes, absl::MakeConstSpan(input.values));
  Tensor tensor;
  if (layout == TestLayout::kContiguous || ndim == 0) {
    tensor = Empty(input.sizes, dtype);
  } else if (layout == TestLayout::kEveryOther) {
    Shape room = input.sizes;
    room.back() = 2 * room.back() + 1;
    Shape strides = ContiguousStrides(room);
    strides.back() = 2;
    const Tensor memory = Zeros(room, dtype);
    tensor = MakeView(memory.storage(), 1, input.sizes, strides, dtype);
  } else {
    Shape reversed(input.sizes.rbegin(), input.sizes.rend());
    const Shape strides = ContiguousStrides(reversed);
    const Tensor memory = Empty(reversed, dtype);
    tensor = MakeView(memory.storage(), 0, input.sizes,
                      Shape(strides.rbegin(), strides.rend()), dtype);
  }
  CopyInPlace(tensor, source);
  return tensor;
}

AssertionResult Gradcheck(const TensorFunction& fn,
                          const std::vector<TestInput>& inputs) {
  const std::vector<double> value = ValueOf(fn, inputs);
  const Jacobian numeric = NumericJacobian(fn, inputs, value.size());
  for (TestLayout layout : {TestLayout::kContiguous, TestLayout::kEveryOther,
                            TestLayout::kReversed}) {
    AssertionResult result = CheckJacobian(fn, inputs, numeric, layout);
    if (!result) return result;
  }
  TensorList leaves = MakeLeaves(inputs, TestLayout::kContiguous);
  const Tensor out = fn(leaves);
  const TestInput weights = RandomInput(out.sizes(), 17);
  return CheckAccumulation(fn, inputs,
                           MakeInput(weights, TestLayout::kContiguous));
}

AssertionResult GradGradcheck(const TensorFunction& fn,
                              const std::vector<TestInput>& inputs) {
  const TensorFunction of_gradients = [&fn](TensorSpan tensors) {
    // Works in NoGrad, too, because its value consists of gradients.
    GradModeScope grad_mode(true);
    TensorList leaves;
    for (const Tensor& tensor : tensors) {
      leaves.push_back(tensor.requires_grad()
                           ? tensor
                           : tensor.Detach().set_requires_grad(true));
    }
    const Tensor out = fn(leaves);
    const TensorList gradients =
        Gradients(out, leaves,
                  {.gradient = MakeInput(RandomInput(out.sizes(), 29),
                                         TestLayout::kContiguous),
                   .create_graph = true})
            .value();
    Tensor sum;
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) continue;
      const Tensor part = Sum(
          Mul(gradients[i], MakeInput(RandomInput(leaves[i].sizes(), 31 + i),
                                      TestLayout::kContiguous)));
      sum = sum.defined() ? Add(sum, part) : part;
    }
    CH_CHECK(sum.defined());
    return sum.requires_grad() ? sum : sum.Detach();
  };
  return Gradcheck(of_gradients, inputs);
}

}  // namespace crosshatch
