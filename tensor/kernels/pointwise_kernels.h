// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_POINTWISE_KERNELS_H_
#define CROSSHATCH_TENSOR_KERNELS_POINTWISE_KERNELS_H_

/// \file
/// Elementwise kernels.

#include <cstdint>

#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/kernels/operands.h"

namespace crosshatch {

enum class UnaryOp : uint8_t {
  // Floating point and integers.
  kNeg,
  kAbs,
  kSign,  ///< -1, 0 or 1.
  kSquare,
  kRelu,
  kAddScalar,    ///< a + scalar
  kMulScalar,    ///< a * scalar
  kScalarMinus,  ///< scalar - a
  kMaxScalar,    ///< max(a, scalar); NaN stays.
  kMinScalar,    ///< min(a, scalar); NaN stays.
  // Floating point only.
  kExp,
  kLog,
  kSqrt,
  kRsqrt,
  kReciprocal,
  kTanh,
  kSigmoid,
  kSilu,  ///< a * sigmoid(a)
  kErf,
  kGelu,       ///< The tanh form.
  kGeluExact,  ///< a * (1 + erf(a / sqrt(2))) / 2
  kPowScalar,  ///< a ^ scalar
  // Bool only.
  kNot,
};

/// out (=, +=) op(a). Dtypes are equal, except that one of `a` and out may be a
/// 16-bit float and the other f32.
struct UnaryArgs {
  UnaryOp op = UnaryOp::kNeg;
  KernelShape shape;
  KernelInput a;
  KernelOutput out;
  double scalar = 0;
  WriteMode mode = WriteMode::kOverwrite;
};

enum class BinaryOp : uint8_t {
  // Floating point and integers.
  kAdd,  ///< a + alpha * b
  kSub,  ///< a - alpha * b
  kMul,
  kDiv,  ///< Integers: towards zero; by zero gives 0.
  kMax,  ///< NaN if either is.
  kMin,  ///< NaN if either is.
  // Floating point only.
  kPow,
  // Derivatives, floating point only: a is the output's gradient.
  kReluBackward,       ///< 0 where b <= 0, else a; b = input or output.
  kSiluBackward,       ///< b = input.
  kGeluBackward,       ///< b = input.
  kGeluExactBackward,  ///< b = input.
  kTanhBackward,       ///< b = output: a * (1 - b^2).
  kSigmoidBackward,    ///< b = output: a * b * (1 - b).
  // Any dtype; out is bool.
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  // Bool only.
  kAnd,
  kOr,
};

/// out (=, +=) a op b. The dtypes of a, b and out are equal (out is bool for
/// comparisons), except that 16-bit floats and f32 mix freely.
struct BinaryArgs {
  BinaryOp op = BinaryOp::kAdd;
  KernelShape shape;
  KernelInput a;
  KernelInput b;
  KernelOutput out;
  double alpha = 1;
  /// kAccumulate: not for comparisons and bool.
  WriteMode mode = WriteMode::kOverwrite;
};

/// out (=, +=) condition ? a : b. The condition is bool; the rest as in
/// BinaryArgs, and any dtype but bool for kAccumulate.
struct WhereArgs {
  KernelShape shape;
  KernelInput condition;
  KernelInput a;
  KernelInput b;
  KernelOutput out;
  WriteMode mode = WriteMode::kOverwrite;
};

/// out = silu(gate) * up, the inner step of SwiGLU. Floating point only.
struct SiluMulArgs {
  KernelShape shape;
  KernelInput gate;
  KernelInput up;
  KernelOutput out;
};

/// Gradients of SiluMulArgs; those with null outputs are not computed.
struct SiluMulBackwardArgs {
  KernelShape shape;
  KernelInput grad;
  KernelInput gate;
  KernelInput up;
  KernelOutput dgate;
  KernelOutput dup;
  bool want_dgate = true;
  bool want_dup = true;
};

/// The list of this family (kernel_table.h).
#define CH_POINTWISE_KERNELS(K, W, d)  \
  K(d, unary, Unary, UnaryArgs)        \
  K(d, binary, Binary, BinaryArgs)     \
  K(d, where, Where, WhereArgs)        \
  K(d, silu_mul, SiluMul, SiluMulArgs) \
  K(d, silu_mul_backward, SiluMulBackward, SiluMulBackwardArgs)

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_KERNELS_POINTWISE_KERNELS_H_
