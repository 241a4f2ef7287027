// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "crosshatch/tensor/kernels/reference/reference.h"

namespace crosshatch::reference {
namespace {

Real Max(Real a, Real b) {
  if (std::isnan(a) || std::isnan(b)) {
    return std::numeric_limits<Real>::quiet_NaN();
  }
  return a > b ? a : b;
}
Real Min(Real a, Real b) { return -Max(-a, -b); }

}  // namespace

Real Sigmoid(Real x) { return 1 / (1 + std::exp(-x)); }
Real Silu(Real x) { return x / (1 + std::exp(-x)); }
Real SiluDerivative(Real x) {
  const Real s = Sigmoid(x);
  return s + x * s * (1 - s);
}
Real NormalBelow(Real x) { return std::erfc(-x / std::sqrt(Real(2))) / 2; }
Real GeluArgument(Real x) {
  return 2 * std::sqrt(2 / std::acos(Real(-1))) *
         (x + Real(0.044715) * x * x * x);
}

Real Unary(UnaryOp op, Real a, Real scalar) {
  switch (op) {
    case UnaryOp::kNeg:
      return -a;
    case UnaryOp::kAbs:
      return std::abs(a);
    case UnaryOp::kSign:
      return a > 0 ? 1 : a < 0 ? -1 : a;
    case UnaryOp::kSquare:
      return a * a;
    case UnaryOp::kRelu:
      return a < 0 ? 0 : a;
    case UnaryOp::kAddScalar:
      return a + scalar;
    case UnaryOp::kMulScalar:
      return a * scalar;
    case UnaryOp::kScalarMinus:
      return scalar - a;
    case UnaryOp::kMaxScalar:
      return Max(a, scalar);
    case UnaryOp::kMinScalar:
      return Min(a, scalar);
    case UnaryOp::kExp:
      return std::exp(a);
    case UnaryOp::kLog:
      return std::log(a);
    case UnaryOp::kSqrt:
      return std::sqrt(a);
    case UnaryOp::kRsqrt:
      return 1 / std::sqrt(a);
    case UnaryOp::kReciprocal:
      return 1 / a;
    case UnaryOp::kTanh:
      return std::tanh(a);
    case UnaryOp::kSigmoid:
      return Sigmoid(a);
    case UnaryOp::kSilu:
      return Silu(a);
    case UnaryOp::kGelu:
      return a * Sigmoid(GeluArgument(a));
    case UnaryOp::kErf:
      return std::erf(a);
    case UnaryOp::kGeluExact:
      return a * NormalBelow(a);
    case UnaryOp::kPowScalar:
      return std::pow(a, scalar);
    case UnaryOp::kNot:
      return a == 0;
  }
  return 0;
}

Real Binary(BinaryOp op, Real a, Real b, Real alpha) {
  switch (op) {
    case BinaryOp::kAdd:
      return a + alpha * b;
    case BinaryOp::kSub:
      return a - alpha * b;
    case BinaryOp::kMul:
      return a * b;
    case BinaryOp::kDiv:
      return a / b;
    case BinaryOp::kMax:
      return Max(a, b);
    case BinaryOp::kMin:
      return Min(a, b);
    case BinaryOp::kPow:
      return std::pow(a, b);
    case BinaryOp::kReluBackward:
      return b <= 0 ? 0 : a;
    case BinaryOp::kSiluBackward:
      return a * SiluDerivative(b);
    case BinaryOp::kGeluBackward: {
      const Real s = Sigmoid(GeluArgument(b));
      const Real slope = 2 * std::sqrt(2 / std::acos(Real(-1))) *
                         (1 + 3 * Real(0.044715) * b * b);
      return a * (s + b * s * (1 - s) * slope);
    }
    case BinaryOp::kGeluExactBackward:
      return a * (NormalBelow(b) + b * std::exp(-b * b / 2) /
                                       std::sqrt(2 * std::acos(Real(-1))));
    case BinaryOp::kTanhBackward:
      return a * (1 - b * b);
    case BinaryOp::kSigmoidBackward:
      return a * b * (1 - b);
    case BinaryOp::kEqual:
      return a == b;
    case BinaryOp::kNotEqual:
      return a != b;
    case BinaryOp::kLess:
      return a < b;
    case BinaryOp::kLessEqual:
      return a <= b;
    case BinaryOp::kGreater:
      return a > b;
    case BinaryOp::kGreaterEqual:
      return a >= b;
    case BinaryOp::kAnd:
      return a != 0 && b != 0;
    case BinaryOp::kOr:
      return a != 0 || b != 0;
  }
  return 0;
}

}  // namespace crosshatch::reference
