// SPDX-License-Identifier: Apache-2.0
// The derivatives of pointwise.h. If the gradients' graph is recorded, the
// formulas are compositions of ops; otherwise some are one fused kernel.
#include <cmath>
#include <numbers>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/ops/saving_node.h"

namespace crosshatch {
namespace {

Tensor Fused(BinaryOp kind, const Tensor& grad, const Tensor& saved) {
  return Apply1(BinaryPointwiseOp(kind), {grad, saved});
}

/// Returns 0 where x <= 0, otherwise grad: NaN is not hidden.
Tensor WherePositive(const Tensor& grad, const Tensor& x) {
  return Fused(BinaryOp::kReluBackward, grad, x);
}

Tensor SiluDerivative(const Tensor& x) {
  const Tensor s = Sigmoid(x);
  return Mul(s, Add(Mul(x, Sub(1, s)), 1));
}

Tensor GeluDerivative(const Tensor& x) {
  constexpr double kCubic = 0.044715;
  const double scale = std::sqrt(2 / std::numbers::pi);
  const Tensor square = Square(x);
  const Tensor inner = Mul(Mul(x, Add(Mul(square, kCubic), 1)), scale);
  const Tensor slope = Mul(Add(Mul(square, 3 * kCubic), 1), scale);
  const Tensor t = Tanh(inner);
  return Add(Mul(Add(t, 1), 0.5),
             Mul(Mul(x, Mul(Sub(1, Square(t)), slope)), 0.5));
}

/// Returns (2 / sqrt(pi)) e^(-x^2).
Tensor ErfDerivative(const Tensor& x) {
  return Mul(Exp(Neg(Square(x))), 2 / std::sqrt(std::numbers::pi));
}

/// Returns the normal distribution function at x plus x times the density.
Tensor GeluExactDerivative(const Tensor& x) {
  const Tensor below = Mul(Add(Erf(Mul(x, 1 / std::numbers::sqrt2)), 1), 0.5);
  const Tensor density =
      Mul(Exp(Mul(Square(x), -0.5)), 1 / std::sqrt(2 * std::numbers::pi));
  return Add(below, Mul(x, density));
}

/// Returns the gradient of a unary op from that of its output and the saved
/// input or output (SavesOutput).
Tensor UnaryGradient(UnaryOp kind, double scalar, const Tensor& g,
                     const Tensor& saved) {
  switch (kind) {
    case UnaryOp::kNeg:
    case UnaryOp::kScalarMinus:
      return Neg(g);
    case UnaryOp::kAddScalar:
      return g;
    case UnaryOp::kMulScalar:
      return Mul(g, scalar);
    case UnaryOp::kAbs:
      return Mul(g, Sign(saved));
    case UnaryOp::kSquare:
      return Mul(Mul(g, saved), 2);
    case UnaryOp::kRelu:
      return WherePositive(g, saved);
    case UnaryOp::kMaxScalar:
      return WherePositive(g, Sub(saved, scalar));
    case UnaryOp::kMinScalar:
      return WherePositive(g, Sub(scalar, saved));
    case UnaryOp::kExp:
      return Mul(g, saved);
    case UnaryOp::kLog:
      return Div(g, saved);
    case UnaryOp::kSqrt:
      return Div(Mul(g, 0.5), saved);
    case UnaryOp::kRsqrt:
      return Mul(Mul(g, Mul(Square(saved), saved)), -0.5);
    case UnaryOp::kReciprocal:
      return Neg(Mul(g, Square(saved)));
    case UnaryOp::kTanh:
      return Recording() ? Mul(g, Sub(1, Square(saved)))
                         : Fused(BinaryOp::kTanhBackward, g, saved);
    case UnaryOp::kSigmoid:
      return Recording() ? Mul(g, Mul(saved, Sub(1, saved)))
                         : Fused(BinaryOp::kSigmoidBackward, g, saved);
    case UnaryOp::kSilu:
      return Recording() ? Mul(g, SiluDerivative(saved))
                         : Fused(BinaryOp::kSiluBackward, g, saved);
    case UnaryOp::kGelu:
      return Recording() ? Mul(g, GeluDerivative(saved))
                         : Fused(BinaryOp::kGeluBackward, g, saved);
    case UnaryOp::kErf:
      return Mul(g, ErfDerivative(saved));
    case UnaryOp::kGeluExact:
      return Recording() ? Mul(g, GeluExactDerivative(saved))
                         : Fused(BinaryOp::kGeluExactBackward, g, saved);
    case UnaryOp::kPowScalar:
      if (scalar == 0) return ZerosLike(g);
      return Mul(Mul(g, Pow(saved, scalar - 1)), scalar);
    case UnaryOp::kSign:
    case UnaryOp::kNot:
      break;
  }
  CH_CHECK(false) << UnaryPointwiseOp::InfoOf(kind).name << " has no gradient";
  return Tensor();
}

bool SavesNothing(UnaryOp kind) {
  return kind == UnaryOp::kNeg || kind == UnaryOp::kScalarMinus ||
         kind == UnaryOp::kAddScalar || kind == UnaryOp::kMulScalar;
}

bool SavesOutput(UnaryOp kind) {
  return kind == UnaryOp::kExp || kind == UnaryOp::kSqrt ||
         kind == UnaryOp::kRsqrt || kind == UnaryOp::kReciprocal ||
         kind == UnaryOp::kTanh || kind == UnaryOp::kSigmoid ||
         kind == UnaryOp::kRelu;
}

/// Differentiates a +- alpha b.
std::shared_ptr<Node> SumNode(const BinaryPointwiseOp& op, const Tensor& a,
                              const Tensor& b) {
  const double factor = op.kind == BinaryOp::kAdd ? op.alpha : -op.alpha;
  if (a.sizes() == b.sizes()) {
    return MakeNode<0>(op.info(), [factor](const auto&, TensorSpan grads,
                                           GradientSlots& slots) {
      if (slots.Needed(0)) slots.Put(0, grads[0]);
      if (!slots.Needed(1)) return;
      slots.Put(1, factor == 1 ? grads[0] : Mul(grads[0], factor));
    });
  }
  return MakeNode<0>(
      op.info(), [factor, a_sizes = a.sizes(), b_sizes = b.sizes()](
                     const auto&, TensorSpan grads, GradientSlots& slots) {
        if (slots.Needed(0)) slots.Put(0, SumTo(grads[0], a_sizes));
        if (!slots.Needed(1)) return;
        Tensor db = SumTo(grads[0], b_sizes);
        slots.Put(1, factor == 1 ? std::move(db) : Mul(db, factor));
      });
}

std::shared_ptr<Node> MulNode(const OpInfo& info, const Tensor& a,
                              const Tensor& b) {
  auto node = MakeNode<2>(
      info, [a_sizes = a.sizes(), b_sizes = b.sizes()](
                const auto& self, TensorSpan grads, GradientSlots& slots) {
        const Tensor& g = grads[0];
        if (slots.Needed(0))
          slots.Put(0, SumTo(Mul(g, self.Saved(1)), a_sizes));
        if (slots.Needed(1))
          slots.Put(1, SumTo(Mul(g, self.Saved(0)), b_sizes));
      });
  if (b.requires_grad()) node->Save(0, a);
  if (a.requires_grad()) node->Save(1, b);
  return node;
}

std::shared_ptr<Node> DivNode(const OpInfo& info, const Tensor& a,
                              const Tensor& b, const Tensor& out) {
  auto node = MakeNode<2>(
      info, [a_sizes = a.sizes(), b_sizes = b.sizes()](
                const auto& self, TensorSpan grads, GradientSlots& slots) {
        const Tensor da = Div(grads[0], self.Saved(0));
        if (slots.Needed(0)) slots.Put(0, SumTo(da, a_sizes));
        if (!slots.Needed(1)) return;
        slots.Put(1, SumTo(Neg(Mul(da, self.Saved(1))), b_sizes));
      });
  node->Save(0, b);
  if (b.requires_grad()) node->SaveOutput(1, out);
  return node;
}

std::shared_ptr<Node> PowNode(const OpInfo& info, const Tensor& a,
                              const Tensor& b, const Tensor& out) {
  auto node = MakeNode<3>(
      info, [a_sizes = a.sizes(), b_sizes = b.sizes()](
                const auto& self, TensorSpan grads, GradientSlots& slots) {
        const Tensor& g = grads[0];
        const Tensor a = self.Saved(0);
        const Tensor b = self.Saved(1);
        // Where the derivative is zero, one of its factors may be infinite:
        // a^-1 and log(a) at a = 0. It is replaced by a finite one.
        if (slots.Needed(0)) {
          const Tensor constant = Equal(b, ZerosLike(b));
          const Tensor power = Where(constant, OnesLike(b), Sub(b, 1));
          slots.Put(0, SumTo(Mul(Mul(g, b), Pow(a, power)), a_sizes));
        }
        if (slots.Needed(1)) {
          const Tensor constant =
              LogicalAnd(Equal(a, ZerosLike(a)), GreaterEqual(b, ZerosLike(b)));
          const Tensor base = Where(constant, OnesLike(a), a);
          slots.Put(1, SumTo(Mul(Mul(g, self.Saved(2)), Log(base)), b_sizes));
        }
      });
  node->Save(0, a);
  node->Save(1, b);
  if (b.requires_grad()) node->SaveOutput(2, out);
  return node;
}

/// Differentiates Maximum and Minimum.
std::shared_ptr<Node> ExtremeNode(const BinaryPointwiseOp& op, const Tensor& a,
                                  const Tensor& b) {
  auto node = MakeNode<2>(
      op.info(), [sign = op.kind == BinaryOp::kMax ? 1.0 : -1.0,
                  a_sizes = a.sizes(), b_sizes = b.sizes()](
                     const auto& self, TensorSpan grads, GradientSlots& slots) {
        const Tensor& g = grads[0];
        const Tensor a = self.Saved(0);
        const Tensor b = self.Saved(1);
        const Tensor tie = Equal(a, b);
        const Tensor half = Mul(g, 0.5);
        const Tensor lead = Mul(Sub(a, b), sign);
        if (slots.Needed(0)) {
          slots.Put(0,
                    SumTo(Where(tie, half, WherePositive(g, lead)), a_sizes));
        }
        if (slots.Needed(1)) {
          slots.Put(
              1, SumTo(Where(tie, half, WherePositive(g, Neg(lead))), b_sizes));
        }
      });
  node->Save(0, a);
  node->Save(1, b);
  return node;
}

}  // namespace

std::shared_ptr<Node> UnaryPointwiseOp::Differentiate(
    TensorSpan inputs, TensorSpan outputs) const {
  if (kind == UnaryOp::kSign || kind == UnaryOp::kNot) return nullptr;
  if (SavesNothing(kind)) {
    return MakeNode(info(), [kind = kind, scalar = scalar](const Tensor& g) {
      return UnaryGradient(kind, scalar, g, Tensor());
    });
  }
  auto node = MakeNode<1>(
      info(), [kind = kind, scalar = scalar](const auto& self, TensorSpan grads,
                                             GradientSlots& slots) {
        slots.Put(0, UnaryGradient(kind, scalar, grads[0], self.Saved(0)));
      });
  if (SavesOutput(kind)) {
    node->SaveOutput(0, outputs[0]);
  } else {
    node->Save(0, inputs[0]);
  }
  return node;
}

std::shared_ptr<Node> BinaryPointwiseOp::Differentiate(
    TensorSpan inputs, TensorSpan outputs) const {
  const Tensor& a = inputs[0];
  const Tensor& b = inputs[1];
  switch (kind) {
    case BinaryOp::kAdd:
    case BinaryOp::kSub:
      return SumNode(*this, a, b);
    case BinaryOp::kMul:
      return MulNode(info(), a, b);
    case BinaryOp::kDiv:
      return DivNode(info(), a, b, outputs[0]);
    case BinaryOp::kPow:
      return PowNode(info(), a, b, outputs[0]);
    case BinaryOp::kMax:
    case BinaryOp::kMin:
      return ExtremeNode(*this, a, b);
    case BinaryOp::kReluBackward: {
      // Linear in a, and piecewise constant in b.
      auto node = MakeNode<1>(
          info(), [](const auto& self, TensorSpan grads, GradientSlots& slots) {
            slots.Put(1, Tensor());
            if (!slots.Needed(0)) return;
            slots.Put(0, WherePositive(grads[0], self.Saved(0)));
          });
      node->Save(0, b);
      return node;
    }
    case BinaryOp::kSiluBackward:
    case BinaryOp::kGeluBackward:
    case BinaryOp::kGeluExactBackward:
    case BinaryOp::kTanhBackward:
    case BinaryOp::kSigmoidBackward:
      CH_CHECK(false) << info().name << " is not differentiable";
      return nullptr;
    case BinaryOp::kEqual:
    case BinaryOp::kNotEqual:
    case BinaryOp::kLess:
    case BinaryOp::kLessEqual:
    case BinaryOp::kGreater:
    case BinaryOp::kGreaterEqual:
    case BinaryOp::kAnd:
    case BinaryOp::kOr:
      return nullptr;
  }
  return nullptr;
}

std::shared_ptr<Node> WhereOp::Differentiate(TensorSpan inputs,
                                             TensorSpan /*outputs*/) const {
  auto node = MakeNode<1>(
      kInfo, [a_sizes = inputs[1].sizes(), b_sizes = inputs[2].sizes()](
                 const auto& self, TensorSpan grads, GradientSlots& slots) {
        const Tensor& g = grads[0];
        const Tensor condition = self.Saved(0);
        // Not a product with 0 and 1, because infinity times 0 is NaN.
        const Tensor zeros = ZerosLike(g);
        if (slots.Needed(1)) {
          slots.Put(1, SumTo(Where(condition, g, zeros), a_sizes));
        }
        if (slots.Needed(2)) {
          slots.Put(2, SumTo(Where(condition, zeros, g), b_sizes));
        }
      });
  node->Save(0, inputs[0]);
  return node;
}

std::shared_ptr<Node> SwiGluOp::Differentiate(TensorSpan inputs,
                                              TensorSpan /*outputs*/) const {
  auto node = MakeNode<2>(
      kInfo, [](const auto& self, TensorSpan grads, GradientSlots& slots) {
        const Tensor& g = grads[0];
        const Tensor gate = self.Saved(0);
        const Tensor up = self.Saved(1);
        if (Recording()) {
          slots.Put(0, Mul(Mul(g, up), SiluDerivative(gate)));
          slots.Put(1, Mul(g, Silu(gate)));
          return;
        }
        TensorList both = Apply(SwiGluBackwardOp(), {g, gate, up});
        slots.Put(0, std::move(both[0]));
        slots.Put(1, std::move(both[1]));
      });
  node->Save(0, inputs[0]);
  node->Save(1, inputs[1]);
  return node;
}

}  // namespace crosshatch
