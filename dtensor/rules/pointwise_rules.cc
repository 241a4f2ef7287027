// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "crosshatch/dtensor/rules/op_rule.h"
#include "crosshatch/dtensor/rules/op_rules.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/pointwise.h"

namespace crosshatch {
namespace {

OpRule Pointwise(Linearity linearity, uint32_t linear_inputs = ~uint32_t{0}) {
  return [linearity, linear_inputs](const RuleCall& call) {
    FactorRule rule = PointwiseFactors(call, linearity);
    rule.linear_inputs = linear_inputs;
    return SolveFactors(call, rule);
  };
}

constexpr UnaryOp kUnaryOps[] = {
    UnaryOp::kNeg,       UnaryOp::kAbs,         UnaryOp::kSign,
    UnaryOp::kSquare,    UnaryOp::kRelu,        UnaryOp::kAddScalar,
    UnaryOp::kMulScalar, UnaryOp::kScalarMinus, UnaryOp::kMaxScalar,
    UnaryOp::kMinScalar, UnaryOp::kExp,         UnaryOp::kLog,
    UnaryOp::kSqrt,      UnaryOp::kRsqrt,       UnaryOp::kReciprocal,
    UnaryOp::kTanh,      UnaryOp::kSigmoid,     UnaryOp::kSilu,
    UnaryOp::kErf,       UnaryOp::kGelu,        UnaryOp::kGeluExact,
    UnaryOp::kPowScalar, UnaryOp::kNot,
};

constexpr BinaryOp kBinaryOps[] = {
    BinaryOp::kAdd,
    BinaryOp::kSub,
    BinaryOp::kMul,
    BinaryOp::kDiv,
    BinaryOp::kMax,
    BinaryOp::kMin,
    BinaryOp::kPow,
    BinaryOp::kReluBackward,
    BinaryOp::kSiluBackward,
    BinaryOp::kGeluBackward,
    BinaryOp::kGeluExactBackward,
    BinaryOp::kTanhBackward,
    BinaryOp::kSigmoidBackward,
    BinaryOp::kEqual,
    BinaryOp::kNotEqual,
    BinaryOp::kLess,
    BinaryOp::kLessEqual,
    BinaryOp::kGreater,
    BinaryOp::kGreaterEqual,
    BinaryOp::kAnd,
    BinaryOp::kOr,
};

OpRule RuleOf(UnaryOp kind) {
  const bool linear = kind == UnaryOp::kNeg || kind == UnaryOp::kMulScalar;
  return Pointwise(linear ? Linearity::kMultilinear : Linearity::kNone);
}

OpRule RuleOf(BinaryOp kind) {
  constexpr uint32_t kInFirst = 1;
  switch (kind) {
    case BinaryOp::kAdd:
    case BinaryOp::kSub:
      return Pointwise(Linearity::kAdditive);
    case BinaryOp::kMul:
      return Pointwise(Linearity::kMultilinear);
    case BinaryOp::kDiv:
    case BinaryOp::kReluBackward:
    case BinaryOp::kSiluBackward:
    case BinaryOp::kGeluBackward:
    case BinaryOp::kGeluExactBackward:
    case BinaryOp::kTanhBackward:
    case BinaryOp::kSigmoidBackward:
      return Pointwise(Linearity::kMultilinear, kInFirst);
    default:
      return Pointwise(Linearity::kNone);
  }
}

// Rounding to integers is not linear. Rounding to a shorter float may be
// treated as linear, except for f16: a part may exceed its range although the
// sum does not.
RuleResult CastRule(const RuleCall& call) {
  const DType from = call.inputs[0].dtype;
  const DType to = static_cast<const CastOp&>(call.op).dtype;
  const bool floats = IsFloatingPoint(from) && IsFloatingPoint(to) &&
                      (to != kFloat16 || from == kFloat16);
  return SolveFactors(
      call, PointwiseFactors(
                call, floats ? Linearity::kMultilinear : Linearity::kNone));
}

RuleResult SwiGluBackwardRule(const RuleCall& call) {
  FactorRule rule = PointwiseFactors(call, Linearity::kMultilinear);
  rule.linear_inputs = 1;
  rule.outputs.push_back(rule.outputs[0]);
  return SolveFactors(call, rule);
}

// The values of `like` are not read: its layout does not change, and its
// pending reductions do not apply to the result.
RuleResult FullLikeRule(const RuleCall& call) {
  const RuleInput& like = call.inputs[0];
  RuleResult result;
  result.inputs = {like.layout};
  result.outputs.push_back({like.layout.WithoutPartials(), like.sizes});
  return result;
}

// Zeros on every rank are a sum of zeros; other values would be added up.
RuleResult FillRule(const RuleCall& call) {
  const bool zero = static_cast<const FillInPlaceOp&>(call.op).value == 0;
  return SolveFactors(call, PointwiseFactors(call, zero ? Linearity::kAdditive
                                                        : Linearity::kNone));
}

}  // namespace

void AddPointwiseRules(OpRuleTable& table) {
  for (UnaryOp kind : kUnaryOps) {
    table[&UnaryPointwiseOp::InfoOf(kind)] = {RuleOf(kind)};
  }
  for (BinaryOp kind : kBinaryOps) {
    table[&BinaryPointwiseOp::InfoOf(kind)] = {RuleOf(kind)};
  }
  table[&WhereOp::kInfo] = {Pointwise(Linearity::kNone)};
  table[&SwiGluOp::kInfo] = {Pointwise(Linearity::kNone)};
  table[&SwiGluBackwardOp::kInfo] = {SwiGluBackwardRule};
  table[&FullLikeOp::kInfo] = {FullLikeRule};
  table[&CastOp::kInfo] = {CastRule};
  table[&CloneOp::kInfo] = {Pointwise(Linearity::kMove)};

  table[&AddInPlaceOp::kInfo] = {Pointwise(Linearity::kAdditive)};
  table[&MulInPlaceOp::kInfo] = {Pointwise(Linearity::kMultilinear, 1)};
  table[&ScaleInPlaceOp::kInfo] = {Pointwise(Linearity::kMultilinear)};
  table[&CopyInPlaceOp::kInfo] = {Pointwise(Linearity::kMove)};
  table[&FillInPlaceOp::kInfo] = {FillRule};
}

}  // namespace crosshatch
