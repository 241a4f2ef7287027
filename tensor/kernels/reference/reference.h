// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_REFERENCE_REFERENCE_H_
#define CROSSHATCH_TENSOR_KERNELS_REFERENCE_REFERENCE_H_

/// \file
/// Slow, obvious definitions of kernels, which tests compare kernels with. They
/// take the kernels' arguments. Results are Real, in row-major order of the
/// output's sizes, and not rounded to the output's dtype.

#include <cstdint>
#include <vector>

#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/kernels/kernel_table.h"

namespace crosshatch::reference {

/// A number that can represent each element of each dtype.
using Real = long double;
using Reals = std::vector<Real>;

Real ReadElement(const void* data, DType dtype, int64_t index);
/// Rounds, saturates and truncates as CopyArgs specifies.
void WriteElement(void* data, DType dtype, int64_t index, Real value);

/// Returns half of the distance from 1 to the next number: rounding to a
/// floating point dtype changes x by at most UnitRoundoff * |x| + Smallest. 0
/// for other dtypes.
Real UnitRoundoff(DType dtype);
/// Returns the smallest positive number of a floating point dtype; 0 for other
/// dtypes.
Real Smallest(DType dtype);

/// Returns the offsets of an operand's elements, in row-major order.
std::vector<int64_t> Offsets(const KernelShape& shape, const int64_t* strides);

/// Returns an operand's elements, in row-major order.
Reals ReadAll(const KernelShape& shape, const KernelInput& input);

/// \name Pointwise
/// @{
Real Unary(UnaryOp op, Real a, Real scalar);
Real Binary(BinaryOp op, Real a, Real b, Real alpha);
/// x * sigmoid(x) and its derivative.
Real Sigmoid(Real x);
Real Silu(Real x);
Real SiluDerivative(Real x);
/// The normal distribution function.
Real NormalBelow(Real x);
/// The argument of gelu's sigmoid: 2 sqrt(2 / pi) (x + 0.044715 x^3).
Real GeluArgument(Real x);
/// @}

/// The error of a sum is proportional to its `magnitudes`: the sum of the
/// absolute values of its terms.
struct Sums {
  Reals values;
  Reals magnitudes;
};

struct Reduction : Sums {
  int64_t terms;  ///< Of each output.
};
/// Does not add the old output.
Reduction Reduce(const ReduceArgs& args);
Sums CumSum(const CumSumArgs& args);
/// Reads the old out if beta is not 0. Magnitudes: |alpha| sum |a| |b| + |beta
/// out| + |bias|.
Sums MatMul(const MatMulArgs& args);
/// Returns the elements of out.
Reals ReadOut(const MatMulArgs& args);

struct Sorted {
  Reals values;
  std::vector<int64_t> indices;
};
Sorted Sort(const SortArgs& args);

/// \name One row of a matrix
/// @{
Real LogSumExp(const Reals& x);
Reals Softmax(const Reals& x, bool log);
/// Returns the gradient of the softmax (or of its logarithm) that gave y.
Reals SoftmaxBackward(const Reals& y, const Reals& grad, bool log);

/// The mean (0 unless centered) and 1 / standard deviation.
struct NormStatistics {
  Real mean;
  Real rstd;
};
NormStatistics NormOf(const Reals& x, bool centered, Real eps);
/// Returns the gradient by x of sum(grad * weight * xhat).
Reals NormBackward(const Reals& x, const Reals& weight, const Reals& grad,
                   bool centered, Real eps);
/// @}

/// Returns the image element of each element of the windows; -1 for a zero.
std::vector<int64_t> ElementsOfWindows(const WindowsArgs& args);

/// \name Attention, with all probabilities of one head at a time
/// Tensors are [B, T, H, D], log-sum-exps [B, H, T].
/// @{

/// `score_magnitude`, to which the errors of scores are proportional, is the
/// largest scale * sum |q| |k| + |mask - slope * |distance|| of a query and a
/// key that it attends to.
struct Attention {
  Reals out, out_magnitudes;
  Reals logsumexp;
  Real score_magnitude = 0;
};
Attention AttentionForward(const AttentionArgs& args);

struct AttentionGradients {
  Reals dq, dq_magnitudes;
  Reals dk, dk_magnitudes;
  Reals dv, dv_magnitudes;
};
AttentionGradients AttentionBackward(const AttentionBackwardArgs& args);

/// Returns a [B, T, H, D] operand of a kernel.
Reals ReadHeads(const HeadsInput& x, DType dtype, int64_t batch, int64_t time,
                int64_t heads, int64_t dim);
/// @}

}  // namespace crosshatch::reference

#endif  // CROSSHATCH_TENSOR_KERNELS_REFERENCE_REFERENCE_H_
