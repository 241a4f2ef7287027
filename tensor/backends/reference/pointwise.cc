// SPDX-License-Identifier: Apache-2.0
// Elementwise kernels.
#include "crosshatch/tensor/kernels/reference/pointwise.h"

#include <cstddef>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/backends/reference/elements.h"
#include "crosshatch/tensor/backends/reference/entry_points.h"

namespace crosshatch::reference {
namespace {

int64_t IntegerUnary(UnaryOp op, int64_t x, int64_t scalar) {
  switch (op) {
    case UnaryOp::kNeg:
      return Minus(x);
    case UnaryOp::kAbs:
      return x < 0 ? Minus(x) : x;
    case UnaryOp::kSign:
      return x > 0 ? 1 : x < 0 ? -1 : 0;
    case UnaryOp::kSquare:
      return Times(x, x);
    case UnaryOp::kRelu:
      return x < 0 ? 0 : x;
    case UnaryOp::kAddScalar:
      return Plus(x, scalar);
    case UnaryOp::kMulScalar:
      return Times(x, scalar);
    case UnaryOp::kScalarMinus:
      return Plus(scalar, Minus(x));
    case UnaryOp::kMaxScalar:
      return x > scalar ? x : scalar;
    case UnaryOp::kMinScalar:
      return x < scalar ? x : scalar;
    case UnaryOp::kNot:
      return x == 0;
    default:
      CH_CHECK(false) << "unary kernel: not an op of integers";
      return 0;
  }
}

int64_t IntegerBinary(BinaryOp op, int64_t x, int64_t y, int64_t alpha) {
  switch (op) {
    case BinaryOp::kAdd:
      return Plus(x, Times(alpha, y));
    case BinaryOp::kSub:
      return Plus(x, Minus(Times(alpha, y)));
    case BinaryOp::kMul:
      return Times(x, y);
    case BinaryOp::kDiv:
      // The lowest integer has no positive twin.
      return y == 0 ? 0 : y == -1 ? Minus(x) : x / y;
    case BinaryOp::kMax:
      return x > y ? x : y;
    case BinaryOp::kMin:
      return x < y ? x : y;
    case BinaryOp::kEqual:
      return x == y;
    case BinaryOp::kNotEqual:
      return x != y;
    case BinaryOp::kLess:
      return x < y;
    case BinaryOp::kLessEqual:
      return x <= y;
    case BinaryOp::kGreater:
      return x > y;
    case BinaryOp::kGreaterEqual:
      return x >= y;
    case BinaryOp::kAnd:
      return x != 0 && y != 0;
    case BinaryOp::kOr:
      return x != 0 || y != 0;
    default:
      CH_CHECK(false) << "binary kernel: not an op of integers";
      return 0;
  }
}

}  // namespace

void UnaryKernel(const UnaryArgs& args, KernelContext& /*context*/) {
  const std::vector<int64_t> as = Offsets(args.shape, args.a.strides);
  const std::vector<int64_t> outs = Offsets(args.shape, args.out.strides);
  for (size_t i = 0; i < outs.size(); ++i) {
    if (IsInteger(args.a.dtype)) {
      PutInteger(
          args.out.data, args.out.dtype, outs[i],
          IntegerUnary(args.op, ReadInteger(args.a.data, args.a.dtype, as[i]),
                       static_cast<int64_t>(args.scalar)),
          args.mode);
    } else {
      Put(args.out.data, args.out.dtype, outs[i],
          Unary(args.op, ReadElement(args.a.data, args.a.dtype, as[i]),
                ComputeScalar(args.a.dtype, args.scalar)),
          args.mode);
    }
  }
}

void BinaryKernel(const BinaryArgs& args, KernelContext& /*context*/) {
  const std::vector<int64_t> as = Offsets(args.shape, args.a.strides);
  const std::vector<int64_t> bs = Offsets(args.shape, args.b.strides);
  const std::vector<int64_t> outs = Offsets(args.shape, args.out.strides);
  for (size_t i = 0; i < outs.size(); ++i) {
    if (IsInteger(args.a.dtype)) {
      PutInteger(
          args.out.data, args.out.dtype, outs[i],
          IntegerBinary(args.op, ReadInteger(args.a.data, args.a.dtype, as[i]),
                        ReadInteger(args.b.data, args.b.dtype, bs[i]),
                        static_cast<int64_t>(args.alpha)),
          args.mode);
    } else {
      Put(args.out.data, args.out.dtype, outs[i],
          Binary(args.op, ReadElement(args.a.data, args.a.dtype, as[i]),
                 ReadElement(args.b.data, args.b.dtype, bs[i]),
                 ComputeScalar(args.a.dtype, args.alpha)),
          args.mode);
    }
  }
}

void WhereKernel(const WhereArgs& args, KernelContext& /*context*/) {
  ForEachElement(args.shape, [&](const int64_t* at) {
    const int64_t condition = OffsetOf(args.shape, at, args.condition.strides);
    const bool yes =
        ReadElement(args.condition.data, args.condition.dtype, condition) != 0;
    const KernelInput& taken = yes ? args.a : args.b;
    const int64_t from = OffsetOf(args.shape, at, taken.strides);
    const int64_t to = OffsetOf(args.shape, at, args.out.strides);
    if (IsInteger(taken.dtype)) {
      PutInteger(args.out.data, args.out.dtype, to,
                 ReadInteger(taken.data, taken.dtype, from), args.mode);
    } else {
      Put(args.out.data, args.out.dtype, to,
          ReadElement(taken.data, taken.dtype, from), args.mode);
    }
  });
}

void SiluMulKernel(const SiluMulArgs& args, KernelContext& /*context*/) {
  ForEachElement(args.shape, [&](const int64_t* at) {
    const auto read = [&](const KernelInput& in) {
      return ReadElement(in.data, in.dtype,
                         OffsetOf(args.shape, at, in.strides));
    };
    WriteElement(args.out.data, args.out.dtype,
                 OffsetOf(args.shape, at, args.out.strides),
                 Silu(read(args.gate)) * read(args.up));
  });
}

void SiluMulBackwardKernel(const SiluMulBackwardArgs& args,
                           KernelContext& /*context*/) {
  ForEachElement(args.shape, [&](const int64_t* at) {
    const auto read = [&](const KernelInput& in) {
      return ReadElement(in.data, in.dtype,
                         OffsetOf(args.shape, at, in.strides));
    };
    const auto write = [&](const KernelOutput& out, Real value) {
      WriteElement(out.data, out.dtype, OffsetOf(args.shape, at, out.strides),
                   value);
    };
    const Real grad = read(args.grad);
    const Real gate = read(args.gate);
    const Real up = read(args.up);
    if (args.want_dgate) write(args.dgate, grad * up * SiluDerivative(gate));
    if (args.want_dup) write(args.dup, grad * Silu(gate));
  });
}

}  // namespace crosshatch::reference
