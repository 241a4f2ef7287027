// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/pointwise.h"

#include <bit>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/launch.h"

namespace crosshatch {
namespace {

using internal::BroadcastInput;
using internal::CheckFloating;
using internal::CheckSameDType;
using internal::Input;
using internal::Launch;
using internal::Output;
using internal::ToKernelShape;

// In the order of the enums.
constexpr OpInfo kUnaryInfos[] = {
    {"neg"},        {"abs"},        {"sign"},       {"square"},
    {"relu"},       {"add_scalar"}, {"mul_scalar"}, {"scalar_minus"},
    {"max_scalar"}, {"min_scalar"}, {"exp"},        {"log"},
    {"sqrt"},       {"rsqrt"},      {"reciprocal"}, {"tanh"},
    {"sigmoid"},    {"silu"},       {"erf"},        {"gelu"},
    {"gelu_exact"}, {"pow_scalar"}, {"logical_not"}};
constexpr OpInfo kBinaryInfos[] = {{"add"},
                                   {"sub"},
                                   {"mul"},
                                   {"div"},
                                   {"maximum"},
                                   {"minimum"},
                                   {"pow"},
                                   {"relu_backward"},
                                   {"silu_backward"},
                                   {"gelu_backward"},
                                   {"gelu_exact_backward"},
                                   {"tanh_backward"},
                                   {"sigmoid_backward"},
                                   {"equal"},
                                   {"not_equal"},
                                   {"less"},
                                   {"less_equal"},
                                   {"greater"},
                                   {"greater_equal"},
                                   {"logical_and"},
                                   {"logical_or"}};
static_assert(std::size(kUnaryInfos) == size_t{1} + size_t(UnaryOp::kNot));
static_assert(std::size(kBinaryInfos) == size_t{1} + size_t(BinaryOp::kOr));

bool IsComparison(BinaryOp kind) {
  return kind >= BinaryOp::kEqual && kind <= BinaryOp::kGreaterEqual;
}

// Returns whether the kind rejects integers.
bool IsFloatingOnly(UnaryOp kind) {
  return kind >= UnaryOp::kExp && kind <= UnaryOp::kPowScalar;
}
bool IsFloatingOnly(BinaryOp kind) {
  return kind >= BinaryOp::kPow && kind <= BinaryOp::kSigmoidBackward;
}

Tensor Unary(UnaryOp kind, const Tensor& a, double scalar = 0) {
  return Apply1(UnaryPointwiseOp(kind, scalar), {&a, 1});
}

Tensor Binary(BinaryOp kind, const Tensor& a, const Tensor& b,
              double alpha = 1) {
  return Apply1(BinaryPointwiseOp(kind, alpha), {a, b});
}

}  // namespace

const OpInfo& UnaryPointwiseOp::InfoOf(UnaryOp kind) {
  return kUnaryInfos[static_cast<size_t>(kind)];
}

TensorList UnaryPointwiseOp::Forward(TensorSpan inputs) const {
  const Tensor& a = inputs[0];
  CH_CHECK((a.dtype() == kBool) == (kind == UnaryOp::kNot))
      << info().name << " of " << a.Describe();
  if (IsFloatingOnly(kind)) CheckFloating(info().name, a);
  Tensor out = Empty(a.sizes(), a.dtype());
  UnaryArgs args;
  args.op = kind;
  args.shape = ToKernelShape(a.sizes(), info().name);
  args.a = Input(a);
  args.out = Output(out);
  args.scalar = scalar;
  Launch(&KernelTable::unary, args);
  return {std::move(out)};
}

const OpInfo& BinaryPointwiseOp::InfoOf(BinaryOp kind) {
  return kBinaryInfos[static_cast<size_t>(kind)];
}

TensorList BinaryPointwiseOp::Forward(TensorSpan inputs) const {
  const Tensor& a = inputs[0];
  const Tensor& b = inputs[1];
  const char* const name = info().name;
  CheckSameDType(name, a, b);
  if (IsFloatingOnly(kind)) CheckFloating(name, a);
  const bool logical = kind == BinaryOp::kAnd || kind == BinaryOp::kOr;
  CH_CHECK(IsComparison(kind) || (a.dtype() == kBool) == logical)
      << name << " of " << a.Describe() << " and " << b.Describe();
  const DType dtype = IsComparison(kind) ? kBool : a.dtype();

  const bool broadcast = a.sizes() != b.sizes();
  Tensor out = broadcast
                   ? Empty(BroadcastShapes(a.sizes(), b.sizes(), name), dtype)
                   : Empty(a.sizes(), dtype);
  BinaryArgs args;
  args.op = kind;
  args.shape = ToKernelShape(out.sizes(), name);
  args.a = broadcast ? BroadcastInput(a, out.sizes()) : Input(a);
  args.b = broadcast ? BroadcastInput(b, out.sizes()) : Input(b);
  args.out = Output(out);
  args.alpha = alpha;
  Launch(&KernelTable::binary, args);
  return {std::move(out)};
}

TensorList WhereOp::Forward(TensorSpan inputs) const {
  const Tensor& condition = inputs[0];
  const Tensor& a = inputs[1];
  const Tensor& b = inputs[2];
  CH_CHECK(condition.dtype() == kBool)
      << "where with the condition " << condition.Describe();
  CheckSameDType(kInfo.name, a, b);
  const Shape sizes = BroadcastShapes(
      condition.sizes(), BroadcastShapes(a.sizes(), b.sizes(), kInfo.name),
      kInfo.name);
  Tensor out = Empty(sizes, a.dtype());
  WhereArgs args;
  args.shape = ToKernelShape(sizes, kInfo.name);
  args.condition = BroadcastInput(condition, sizes);
  args.a = BroadcastInput(a, sizes);
  args.b = BroadcastInput(b, sizes);
  args.out = Output(out);
  Launch(&KernelTable::where, args);
  return {std::move(out)};
}

TensorList SwiGluOp::Forward(TensorSpan inputs) const {
  const Tensor& gate = inputs[0];
  const Tensor& up = inputs[1];
  CH_CHECK(gate.sizes() == up.sizes())
      << "swiglu of " << gate.Describe() << " and " << up.Describe();
  CheckSameDType(kInfo.name, gate, up);
  CheckFloating(kInfo.name, gate);
  Tensor out = Empty(gate.sizes(), gate.dtype());
  SiluMulArgs args;
  args.shape = ToKernelShape(gate.sizes(), kInfo.name);
  args.gate = Input(gate);
  args.up = Input(up);
  args.out = Output(out);
  Launch(&KernelTable::silu_mul, args);
  return {std::move(out)};
}

TensorList SwiGluBackwardOp::Forward(TensorSpan inputs) const {
  const Tensor& grad = inputs[0];
  const Tensor& gate = inputs[1];
  const Tensor& up = inputs[2];
  CH_CHECK(grad.sizes() == gate.sizes() && gate.sizes() == up.sizes())
      << "swiglu_backward of " << grad.Describe() << ", " << gate.Describe()
      << " and " << up.Describe();
  Tensor dgate = Empty(gate.sizes(), gate.dtype());
  Tensor dup = Empty(up.sizes(), up.dtype());
  SiluMulBackwardArgs args;
  args.shape = ToKernelShape(gate.sizes(), kInfo.name);
  args.grad = Input(grad);
  args.gate = Input(gate);
  args.up = Input(up);
  args.dgate = Output(dgate);
  args.dup = Output(dup);
  Launch(&KernelTable::silu_mul_backward, args);
  return {std::move(dgate), std::move(dup)};
}

TensorList FullLikeOp::Forward(TensorSpan inputs) const {
  return {Full(inputs[0].sizes(), value, inputs[0].dtype())};
}

std::shared_ptr<Node> FullLikeOp::Differentiate(TensorSpan /*inputs*/,
                                                TensorSpan /*outputs*/) const {
  return nullptr;
}

Tensor Add(const Tensor& a, const Tensor& b, double alpha) {
  return Binary(BinaryOp::kAdd, a, b, alpha);
}
Tensor Sub(const Tensor& a, const Tensor& b, double alpha) {
  return Binary(BinaryOp::kSub, a, b, alpha);
}
Tensor Mul(const Tensor& a, const Tensor& b) {
  return Binary(BinaryOp::kMul, a, b);
}
Tensor Div(const Tensor& a, const Tensor& b) {
  return Binary(BinaryOp::kDiv, a, b);
}
Tensor Pow(const Tensor& a, const Tensor& b) {
  return Binary(BinaryOp::kPow, a, b);
}
Tensor Maximum(const Tensor& a, const Tensor& b) {
  return Binary(BinaryOp::kMax, a, b);
}
Tensor Minimum(const Tensor& a, const Tensor& b) {
  return Binary(BinaryOp::kMin, a, b);
}

Tensor Add(const Tensor& a, double b) {
  return Unary(UnaryOp::kAddScalar, a, b);
}
Tensor Sub(const Tensor& a, double b) {
  return Unary(UnaryOp::kAddScalar, a, -b);
}
Tensor Sub(double a, const Tensor& b) {
  return Unary(UnaryOp::kScalarMinus, b, a);
}
Tensor Mul(const Tensor& a, double b) {
  return Unary(UnaryOp::kMulScalar, a, b);
}
Tensor Div(const Tensor& a, double b) {
  CheckFloating("div", a);
  return Unary(UnaryOp::kMulScalar, a, 1 / b);
}
Tensor Div(double a, const Tensor& b) { return Mul(Reciprocal(b), a); }
Tensor Pow(const Tensor& a, double exponent) {
  return Unary(UnaryOp::kPowScalar, a, exponent);
}
Tensor Maximum(const Tensor& a, double b) {
  return Unary(UnaryOp::kMaxScalar, a, b);
}
Tensor Minimum(const Tensor& a, double b) {
  return Unary(UnaryOp::kMinScalar, a, b);
}

Tensor Neg(const Tensor& a) { return Unary(UnaryOp::kNeg, a); }
Tensor Abs(const Tensor& a) { return Unary(UnaryOp::kAbs, a); }
Tensor Sign(const Tensor& a) { return Unary(UnaryOp::kSign, a); }
Tensor Square(const Tensor& a) { return Unary(UnaryOp::kSquare, a); }
Tensor Exp(const Tensor& a) { return Unary(UnaryOp::kExp, a); }
Tensor Log(const Tensor& a) { return Unary(UnaryOp::kLog, a); }
Tensor Sqrt(const Tensor& a) { return Unary(UnaryOp::kSqrt, a); }
Tensor Rsqrt(const Tensor& a) { return Unary(UnaryOp::kRsqrt, a); }
Tensor Reciprocal(const Tensor& a) { return Unary(UnaryOp::kReciprocal, a); }
Tensor Tanh(const Tensor& a) { return Unary(UnaryOp::kTanh, a); }
Tensor Sigmoid(const Tensor& a) { return Unary(UnaryOp::kSigmoid, a); }
Tensor Relu(const Tensor& a) { return Unary(UnaryOp::kRelu, a); }
Tensor Silu(const Tensor& a) { return Unary(UnaryOp::kSilu, a); }
Tensor Erf(const Tensor& a) { return Unary(UnaryOp::kErf, a); }
Tensor Gelu(const Tensor& a) { return Unary(UnaryOp::kGelu, a); }
Tensor GeluExact(const Tensor& a) { return Unary(UnaryOp::kGeluExact, a); }

Tensor Equal(const Tensor& a, const Tensor& b) {
  return Binary(BinaryOp::kEqual, a, b);
}
Tensor NotEqual(const Tensor& a, const Tensor& b) {
  return Binary(BinaryOp::kNotEqual, a, b);
}
Tensor Less(const Tensor& a, const Tensor& b) {
  return Binary(BinaryOp::kLess, a, b);
}
Tensor LessEqual(const Tensor& a, const Tensor& b) {
  return Binary(BinaryOp::kLessEqual, a, b);
}
Tensor Greater(const Tensor& a, const Tensor& b) {
  return Binary(BinaryOp::kGreater, a, b);
}
Tensor GreaterEqual(const Tensor& a, const Tensor& b) {
  return Binary(BinaryOp::kGreaterEqual, a, b);
}
Tensor LogicalAnd(const Tensor& a, const Tensor& b) {
  return Binary(BinaryOp::kAnd, a, b);
}
Tensor LogicalOr(const Tensor& a, const Tensor& b) {
  return Binary(BinaryOp::kOr, a, b);
}
Tensor LogicalNot(const Tensor& a) { return Unary(UnaryOp::kNot, a); }

Tensor Where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  return Apply1(WhereOp(), {condition, a, b});
}

Tensor SwiGlu(const Tensor& gate, const Tensor& up) {
  return Apply1(SwiGluOp(), {gate, up});
}

Tensor FullLike(const Tensor& like, double value) {
  return Apply1(FullLikeOp(value), {&like, 1});
}
Tensor ZerosLike(const Tensor& like) { return FullLike(like, 0); }
Tensor OnesLike(const Tensor& like) { return FullLike(like, 1); }

}  // namespace crosshatch
