// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_REFERENCE_POINTWISE_H_
#define CROSSHATCH_TENSOR_KERNELS_REFERENCE_POINTWISE_H_

#include "crosshatch/tensor/kernels/kernel_table.h"
#include "crosshatch/tensor/kernels/reference/element.h"

namespace crosshatch::reference {

Real Unary(UnaryOp op, Real a, Real scalar);
Real Binary(BinaryOp op, Real a, Real b, Real alpha);

Real Sigmoid(Real x);
/// x * sigmoid(x) and its derivative.
Real Silu(Real x);
Real SiluDerivative(Real x);
/// The part of a normal distribution below x.
Real NormalBelow(Real x);
/// The argument of gelu's sigmoid: 2 sqrt(2 / pi) (x + 0.044715 x^3).
Real GeluArgument(Real x);

}  // namespace crosshatch::reference

#endif  // CROSSHATCH_TENSOR_KERNELS_REFERENCE_POINTWISE_H_
