// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_OPERATORS_H_
#define CROSSHATCH_TENSOR_OPS_OPERATORS_H_

/// \file
/// Arithmetic operators: a + 2 * b is Add(a, Mul(b, 2)). Operands are those of
/// the functions in pointwise.h, including distributed tensors; no dtype is
/// promoted. (x[0] is a method of Tensor.)

#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

inline Tensor operator+(const Tensor& a, const Tensor& b) { return Add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return Sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return Mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return Div(a, b); }

inline Tensor operator+(const Tensor& a, double b) { return Add(a, b); }
inline Tensor operator-(const Tensor& a, double b) { return Sub(a, b); }
inline Tensor operator*(const Tensor& a, double b) { return Mul(a, b); }
inline Tensor operator/(const Tensor& a, double b) { return Div(a, b); }

inline Tensor operator+(double a, const Tensor& b) { return Add(b, a); }
inline Tensor operator-(double a, const Tensor& b) { return Sub(a, b); }
inline Tensor operator*(double a, const Tensor& b) { return Mul(b, a); }
inline Tensor operator/(double a, const Tensor& b) { return Div(a, b); }

inline Tensor operator-(const Tensor& a) { return Neg(a); }

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_OPERATORS_H_
