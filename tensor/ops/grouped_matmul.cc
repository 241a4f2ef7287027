// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/grouped_matmul.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/launch.h"
#include "crosshatch/tensor/ops/saving_node.h"

namespace crosshatch {
namespace {

// Checks that the groups cover `rows` rows.
void CheckOffsets(const std::string& what, ShapeView offsets, int64_t rows) {
  CH_CHECK(!offsets.empty() && offsets.front() == 0 && offsets.back() == rows)
      << what << ": the offsets " << ToString(offsets)
      << " of groups begin with 0 and end with the number of rows, " << rows;
  for (size_t g = 1; g < offsets.size(); ++g) {
    CH_CHECK(offsets[g - 1] <= offsets[g])
        << what << ": the offsets " << ToString(offsets) << " of groups fall";
  }
}

struct Matrix {
  const Tensor& of;
  int64_t first;  ///< Its first element in `of`.
  int row_dim;
  int col_dim;

  void* data() const {
    auto* const data = static_cast<std::byte*>(of.raw_data());
    return data == nullptr ? data : data + first * SizeOf(of.dtype());
  }
  int64_t row_stride() const {
    return of.strides()[static_cast<size_t>(row_dim)];
  }
  int64_t col_stride() const {
    return of.strides()[static_cast<size_t>(col_dim)];
  }

  template <typename Operand>
  Operand As() const {
    Operand operand;
    operand.data = data();
    operand.row_stride = row_stride();
    operand.col_stride = col_stride();
    return operand;
  }
};

Matrix RowsFrom(const Tensor& t, int64_t row, bool transposed = false) {
  return {t, row * t.strides()[0], transposed ? 1 : 0, transposed ? 0 : 1};
}

Matrix Slab(const Tensor& t, int64_t g, bool transposed = false) {
  return {t, g * t.strides()[0], transposed ? 2 : 1, transposed ? 1 : 2};
}

void Multiply(const Matrix& a, const Matrix& b, const Matrix& out, int64_t m,
              int64_t k, int64_t n) {
  MatMulArgs args;
  args.m = m;
  args.k = k;
  args.n = n;
  args.dtype = a.of.dtype();
  args.out_dtype = out.of.dtype();
  args.a = a.As<MatMulInput>();
  args.b = b.As<MatMulInput>();
  args.out = out.As<MatMulOutput>();
  internal::LaunchWithWorkspace(&KernelTable::matmul_workspace_bytes,
                                &KernelTable::matmul, args);
}

void CheckOperands(const char* op, const Tensor& a, const Tensor& b) {
  internal::CheckSameDType(op, a, b);
  internal::CheckFloating(op, a);
}

}  // namespace

Shape GroupedMatMulSizes(ShapeView x, ShapeView w, ShapeView offsets,
                         bool transpose_w) {
  const std::string what = "grouped_matmul of " + ToString(x) + " by " +
                           ToString(w) + (transpose_w ? "^T" : "");
  CH_CHECK(x.size() == 2 && w.size() == 3 && x[1] == w[transpose_w ? 2 : 1])
      << what << ": rows [rows, in] by weights "
      << (transpose_w ? "[groups, out, in]" : "[groups, in, out]");
  CH_CHECK_EQ(static_cast<int64_t>(offsets.size()), w[0] + 1)
      << what << ": offsets, one more than groups";
  CheckOffsets(what, offsets, x[0]);
  return {x[0], w[transpose_w ? 1 : 2]};
}

Shape GroupedOuterSizes(ShapeView a, ShapeView b, ShapeView offsets) {
  const std::string what =
      "grouped_outer of " + ToString(a) + " and " + ToString(b);
  CH_CHECK(a.size() == 2 && b.size() == 2 && a[0] == b[0])
      << what << ": [rows, m] and [rows, n] of as many rows";
  CheckOffsets(what, offsets, a[0]);
  return {static_cast<int64_t>(offsets.size()) - 1, a[1], b[1]};
}

TensorList GroupedMatMulOp::Forward(TensorSpan inputs) const {
  const Tensor& x = inputs[0];
  const Tensor& w = inputs[1];
  const Shape sizes =
      GroupedMatMulSizes(x.sizes(), w.sizes(), offsets, transpose_w);
  CheckOperands(kInfo.name, x, w);
  Tensor out = Empty(sizes, x.dtype());
  for (int64_t g = 0; g < w.size(0); ++g) {
    const int64_t first = offsets[static_cast<size_t>(g)];
    const int64_t rows = offsets[static_cast<size_t>(g) + 1] - first;
    if (rows == 0) continue;
    Multiply(RowsFrom(x, first), Slab(w, g, transpose_w), RowsFrom(out, first),
             rows, x.size(1), out.size(1));
  }
  return {std::move(out)};
}

std::shared_ptr<Node> GroupedMatMulOp::Differentiate(
    TensorSpan inputs, TensorSpan /*outputs*/) const {
  auto node = MakeNode<2>(
      kInfo, [offsets = offsets, transpose_w = transpose_w](
                 const auto& self, TensorSpan grads, GradientSlots& slots) {
        const Tensor& g = grads[0];
        if (slots.Needed(0)) {
          slots.Put(0, GroupedMatMul(g, self.Saved(1), offsets, !transpose_w));
        }
        if (slots.Needed(1)) {
          const Tensor x = self.Saved(0);
          slots.Put(1, transpose_w ? GroupedOuter(g, x, offsets)
                                   : GroupedOuter(x, g, offsets));
        }
      });
  if (inputs[1].requires_grad()) node->Save(0, inputs[0]);
  if (inputs[0].requires_grad()) node->Save(1, inputs[1]);
  return node;
}

void GroupedMatMulOp::AppendKey(OpKey& key) const {
  key.push_back(transpose_w);
  key.insert(key.end(), offsets.begin(), offsets.end());
}

TensorList GroupedOuterOp::Forward(TensorSpan inputs) const {
  const Tensor& a = inputs[0];
  const Tensor& b = inputs[1];
  const Shape sizes = GroupedOuterSizes(a.sizes(), b.sizes(), offsets);
  CheckOperands(kInfo.name, a, b);
  Tensor out = Empty(sizes, a.dtype());
  for (int64_t g = 0; g < sizes[0]; ++g) {
    const int64_t first = offsets[static_cast<size_t>(g)];
    const int64_t rows = offsets[static_cast<size_t>(g) + 1] - first;
    // A product of no terms writes zeros.
    Multiply(RowsFrom(a, first, /*transposed=*/true), RowsFrom(b, first),
             Slab(out, g), sizes[1], rows, sizes[2]);
  }
  return {std::move(out)};
}

std::shared_ptr<Node> GroupedOuterOp::Differentiate(
    TensorSpan inputs, TensorSpan /*outputs*/) const {
  auto node =
      MakeNode<2>(kInfo, [offsets = offsets](const auto& self, TensorSpan grads,
                                             GradientSlots& slots) {
        const Tensor& g = grads[0];
        if (slots.Needed(0)) {
          slots.Put(0, GroupedMatMul(self.Saved(1), g, offsets,
                                     /*transpose_w=*/true));
        }
        if (slots.Needed(1)) {
          slots.Put(1, GroupedMatMul(self.Saved(0), g, offsets));
        }
      });
  if (inputs[1].requires_grad()) node->Save(0, inputs[0]);
  if (inputs[0].requires_grad()) node->Save(1, inputs[1]);
  return node;
}

void GroupedOuterOp::AppendKey(OpKey& key) const {
  key.insert(key.end(), offsets.begin(), offsets.end());
}

Tensor GroupedMatMul(const Tensor& x, const Tensor& w, ShapeView offsets,
                     bool transpose_w) {
  return Apply1(GroupedMatMulOp(offsets, transpose_w), {x, w});
}

Tensor GroupedOuter(const Tensor& a, const Tensor& b, ShapeView offsets) {
  return Apply1(GroupedOuterOp(offsets), {a, b});
}

}  // namespace crosshatch
