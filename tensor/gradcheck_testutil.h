// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_GRADCHECK_TESTUTIL_H_
#define CROSSHATCH_TENSOR_GRADCHECK_TESTUTIL_H_

/// \file
/// Compares gradients with finite differences.

#include <cstdint>
#include <functional>
#include <vector>

#include "crosshatch/tensor/shape.h"
#include "crosshatch/tensor/tensor.h"
#include "gtest/gtest.h"

namespace crosshatch {

/// A differentiable function of f64 tensors.
using TensorFunction = std::function<Tensor(TensorSpan)>;

/// The value of an input: its sizes and elements.
struct TestInput {
  Shape sizes;
  std::vector<double> values;
};

/// Returns elements distributed over [low, high], the same in each run, all
/// different (for fewer than 997 elements) and none within 1e-4 of 0.
TestInput RandomInput(ShapeView sizes, uint64_t seed, double low = -1,
                      double high = 1);

/// The memory layout of a tensor.
enum class TestLayout {
  kContiguous,
  kEveryOther,  ///< Every second place of the last dim, from an offset.
  kReversed,    ///< Dims in the reverse order.
};
Tensor MakeInput(const TestInput& input, TestLayout layout,
                 DType dtype = kFloat64);

/// Compares the Jacobian of `fn` by Backward with central differences, with
/// inputs in each memory layout. Also checks that Backward twice doubles the
/// gradients, that Gradients returns the same, and that sinks that overwrite
/// and that add receive the same, in the leaf's memory layout or strided.
::testing::AssertionResult Gradcheck(const TensorFunction& fn,
                                     const std::vector<TestInput>& inputs);

/// Gradcheck of the gradients of `fn`, with create_graph.
::testing::AssertionResult GradGradcheck(const TensorFunction& fn,
                                         const std::vector<TestInput>& inputs);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_GRADCHECK_TESTUTIL_H_
