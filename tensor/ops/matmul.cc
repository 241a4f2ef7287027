// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/matmul.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/launch.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/ops/saving_node.h"
#include "crosshatch/tensor/ops/view.h"

namespace crosshatch {
namespace {

/// An operand or result, split into batch dims and a matrix.
struct Matrices {
  ShapeView batch;
  ShapeView batch_strides;
  int64_t rows;
  int64_t cols;
  int64_t row_stride;
  int64_t col_stride;

  Matrices(const Tensor& tensor, bool transpose) {
    const ShapeView sizes = tensor.sizes();
    const ShapeView strides = tensor.strides();
    const size_t n = sizes.size();
    batch = sizes.subspan(0, n - 2);
    batch_strides = strides.subspan(0, n - 2);
    const size_t row = transpose ? n - 1 : n - 2;
    const size_t col = transpose ? n - 2 : n - 1;
    rows = sizes[row];
    cols = sizes[col];
    row_stride = strides[row];
    col_stride = strides[col];
  }
};

template <typename Operand>
Operand OperandOf(const Tensor& tensor, const Matrices& matrices) {
  Operand operand;
  operand.data = tensor.raw_data();
  operand.row_stride = matrices.row_stride;
  operand.col_stride = matrices.col_stride;
  return operand;
}

void SetBatch(MatMulInput& operand, const Matrices& matrices, ShapeView batch) {
  const size_t lead = batch.size() - matrices.batch.size();
  for (size_t i = 0; i < matrices.batch.size(); ++i) {
    operand.batch_strides[lead + i] =
        matrices.batch[i] == 1 ? 0 : matrices.batch_strides[i];
  }
}

void LaunchMatMul(MatMulArgs& args) {
  internal::LaunchWithWorkspace(&KernelTable::matmul_workspace_bytes,
                                &KernelTable::matmul, args);
}

void CheckOperands(const char* op, const Tensor& a, const Tensor& b) {
  internal::CheckSameDType(op, a, b);
  internal::CheckFloating(op, a);
}

/// Writes or adds the sum over batch dims of the products to args.out.
void SumOverBatch(Tensor a, Tensor b, const MatMulSpec& spec, MatMulArgs args) {
  // If k is the second-last dim of both, the batch dims fold into it.
  const bool folds_into_k = spec.transpose_a && !spec.transpose_b;
  const int rows_end = a.ndim() - 1;
  if (folds_into_k) {
    const auto folded = [rows_end](const Tensor& t) {
      return internal::Folds(t.sizes(), t.strides(), 0, rows_end)
                 ? t
                 : internal::Dense(t);
    };
    a = folded(a);
    b = folded(b);
  }
  const Matrices ma(a, spec.transpose_a);
  const Matrices mb(b, spec.transpose_b);
  args.a = OperandOf<MatMulInput>(a, ma);
  args.b = OperandOf<MatMulInput>(b, mb);
  const int64_t batches = NumElements(ma.batch);
  if (folds_into_k) {
    args.k = batches * ma.cols;
    // The stride of the folded dim: that of its last dim of size above one.
    const auto fold_stride = [rows_end](const Tensor& t) {
      for (int d = rows_end - 1; d >= 0; --d) {
        if (t.size(d) != 1) return t.strides()[static_cast<size_t>(d)];
      }
      return int64_t{1};
    };
    args.a.col_stride = fold_stride(a);
    args.b.row_stride = fold_stride(b);
    LaunchMatMul(args);
    return;
  }
  if (batches == 0) {
    args.k = 0;
    LaunchMatMul(args);
    return;
  }
  Shape index(ma.batch.size(), 0);
  const auto offset = [&index](const Tensor& t, const Matrices& m) {
    int64_t elements = 0;
    for (size_t d = 0; d < index.size(); ++d) {
      elements += index[d] * m.batch_strides[d];
    }
    auto* const data = static_cast<std::byte*>(t.raw_data());
    return data == nullptr ? data : data + elements * SizeOf(t.dtype());
  };
  for (int64_t batch = 0; batch < batches; ++batch) {
    args.a.data = offset(a, ma);
    args.b.data = offset(b, mb);
    LaunchMatMul(args);
    args.beta = 1;
    for (size_t d = index.size(); d-- > 0;) {
      if (++index[d] < ma.batch[d]) break;
      index[d] = 0;
    }
  }
}

/// out (=, +=) the product, plus a bias for each row, if defined. All shapes
/// and dtypes are checked.
void Compute(const Tensor& out, const Tensor& a, const Tensor& b,
             const MatMulSpec& spec, bool accumulate,
             const Tensor& bias = Tensor()) {
  const Matrices ma(a, spec.transpose_a);
  const Matrices mb(b, spec.transpose_b);
  const Matrices mo(out, false);
  MatMulArgs args;
  args.m = ma.rows;
  args.k = ma.cols;
  args.n = mb.cols;
  args.dtype = a.dtype();
  args.out_dtype = out.dtype();
  args.beta = accumulate ? 1 : 0;
  args.out = OperandOf<MatMulOutput>(out, mo);
  if (bias.defined()) args.bias = bias.raw_data();
  if (spec.sum_batch) {
    SumOverBatch(a, b, spec, args);
    return;
  }
  args.a = OperandOf<MatMulInput>(a, ma);
  args.b = OperandOf<MatMulInput>(b, mb);
  // One product with many rows, if all use the same b.
  const int rows_end = a.ndim() - 1;
  if (mb.batch.empty() && !spec.transpose_a &&
      internal::Folds(a.sizes(), a.strides(), 0, rows_end) &&
      internal::Folds(out.sizes(), out.strides(), 0, rows_end)) {
    args.m = NumElements(ma.batch) * ma.rows;
    for (int d = rows_end - 1; d >= 0; --d) {
      if (a.size(d) == 1) continue;
      args.a.row_stride = a.strides()[static_cast<size_t>(d)];
      args.out.row_stride = out.strides()[static_cast<size_t>(d)];
      break;
    }
    LaunchMatMul(args);
    return;
  }
  args.batch = internal::ToKernelShape(mo.batch, MatMulOp::kInfo.name);
  SetBatch(args.a, ma, mo.batch);
  SetBatch(args.b, mb, mo.batch);
  for (size_t i = 0; i < mo.batch.size(); ++i) {
    args.out.batch_strides[i] = mo.batch_strides[i];
  }
  LaunchMatMul(args);
}

struct GradientProduct {
  Tensor a;
  Tensor b;
  MatMulSpec spec;
};

/// With `by_a` the gradient of operand a, otherwise of b. With out = a' b': da'
/// = g b'^T and db' = a'^T g.
GradientProduct ProductOfGradient(const MatMulSpec& spec, bool by_a,
                                  const Tensor& g, const Tensor& other) {
  if (by_a) {
    if (!spec.transpose_a) return {g, other, {false, !spec.transpose_b}};
    return {other, g, {spec.transpose_b, true}};
  }
  if (!spec.transpose_b) return {other, g, {!spec.transpose_a, false}};
  return {g, other, {true, spec.transpose_a}};
}

/// The gradients of a product and, for LinearOp, of its bias.
class MatMulNode final : public SavingNode<2> {
 public:
  MatMulNode(const OpInfo& info, const MatMulSpec& spec, TensorSpan inputs)
      : SavingNode(info),
        spec_(spec),
        sizes_{inputs[0].sizes(), inputs[1].sizes()} {
    if (inputs[1].requires_grad()) Save(0, inputs[0]);
    if (inputs[0].requires_grad()) Save(1, inputs[1]);
    if (inputs.size() > 2) bias_sizes_ = inputs[2].sizes();
  }

  void Backward(TensorSpan output_grads, GradientSlots& slots) override {
    for (int i : {0, 1}) {
      if (slots.Needed(i)) Differentiate(i, output_grads[0], slots);
    }
    if (bias_sizes_.has_value() && slots.Needed(2)) {
      slots.Put(2, SumTo(output_grads[0], *bias_sizes_));
    }
  }

 private:
  void Differentiate(int i, const Tensor& g, GradientSlots& slots) {
    const Tensor other = Saved(static_cast<size_t>(1 - i));
    const Shape& sizes = sizes_[i];
    GradientProduct product = ProductOfGradient(spec_, i == 0, g, other);
    // Every batch used an operand without batch dims.
    const ShapeView batch = internal::LeadingSizes(
        internal::LeadingSizes(ShapeView(product.a.sizes())));
    product.spec.sum_batch =
        !spec_.sum_batch && sizes.size() == 2 && !batch.empty() &&
        batch == internal::LeadingSizes(
                     internal::LeadingSizes(ShapeView(product.b.sizes())));
    const bool whole = MatMulSizes(product.a.sizes(), product.b.sizes(),
                                   product.spec) == sizes;
    const GradDestination* destination = whole ? slots.Destination(i) : nullptr;
    if (destination != nullptr && Takes(destination->tensor.dtype(), g)) {
      MatMulInto(destination->tensor, product.a, product.b, product.spec,
                 destination->accumulate);
      slots.MarkWritten(i);
      return;
    }
    Tensor gradient = MatMul(product.a, product.b, product.spec);
    slots.Put(i, whole ? std::move(gradient) : SumTo(gradient, sizes));
  }

  static bool Takes(DType dtype, const Tensor& g) {
    return dtype == g.dtype() || (dtype == kFloat32 && SizeOf(g.dtype()) == 2);
  }

  const MatMulSpec spec_;
  const Shape sizes_[2];
  std::optional<Shape> bias_sizes_;
};

}  // namespace

Shape MatMulSizes(ShapeView a, ShapeView b, const MatMulSpec& spec) {
  const auto describe = [&] {
    return ToString(a) + (spec.transpose_a ? "^T" : "") + " and " +
           ToString(b) + (spec.transpose_b ? "^T" : "");
  };
  CH_CHECK(a.size() >= 2 && b.size() >= 2)
      << "matmul of " << describe() << ": at least 2 dims each";
  const int64_t m = a[a.size() - (spec.transpose_a ? 1 : 2)];
  const int64_t ka = a[a.size() - (spec.transpose_a ? 2 : 1)];
  const int64_t kb = b[b.size() - (spec.transpose_b ? 1 : 2)];
  const int64_t n = b[b.size() - (spec.transpose_b ? 2 : 1)];
  CH_CHECK(ka == kb) << "matmul of " << describe() << ": " << ka << " against "
                     << kb;
  const ShapeView a_batch = a.subspan(0, a.size() - 2);
  const ShapeView b_batch = b.subspan(0, b.size() - 2);
  if (spec.sum_batch) {
    CH_CHECK(a_batch == b_batch)
        << "matmul of " << describe() << ": batch dims to sum over differ";
    return {m, n};
  }
  Shape sizes = a_batch == b_batch
                    ? Shape(a_batch.begin(), a_batch.end())
                    : BroadcastShapes(a_batch, b_batch, MatMulOp::kInfo.name);
  sizes.push_back(m);
  sizes.push_back(n);
  return sizes;
}

TensorList MatMulOp::Forward(TensorSpan inputs) const {
  const Tensor& a = inputs[0];
  const Tensor& b = inputs[1];
  const Shape sizes = MatMulSizes(a.sizes(), b.sizes(), spec);
  CheckOperands(MatMulOp::kInfo.name, a, b);
  Tensor out = Empty(sizes, a.dtype());
  Compute(out, a, b, spec, /*accumulate=*/false);
  return {std::move(out)};
}

std::shared_ptr<Node> MatMulOp::Differentiate(TensorSpan inputs,
                                              TensorSpan /*outputs*/) const {
  return std::make_shared<MatMulNode>(kInfo, spec, inputs);
}

TensorList MatMulIntoOp::Forward(TensorSpan inputs) const {
  const Tensor& dst = inputs[0];
  const Tensor& a = inputs[1];
  const Tensor& b = inputs[2];
  CheckOperands(MatMulOp::kInfo.name, a, b);
  CH_CHECK(dst.sizes() == MatMulSizes(a.sizes(), b.sizes(), spec))
      << kInfo.name << ": the product of " << a.Describe() << " and "
      << b.Describe() << " into " << dst.Describe();
  CH_CHECK(dst.dtype() == a.dtype() ||
           (dst.dtype() == kFloat32 && SizeOf(a.dtype()) == 2))
      << kInfo.name << ": a product of " << a.dtype() << " into "
      << dst.Describe();
  BeginWrite(kInfo.name, dst);
  Compute(dst, a, b, spec, accumulate);
  return {dst};
}

Tensor MatMul(const Tensor& a, const Tensor& b, const MatMulSpec& spec) {
  return Apply1(MatMulOp(spec), {a, b});
}

Tensor MatMul(const Tensor& a, const Tensor& b, bool transpose_a,
              bool transpose_b) {
  return MatMul(a, b, MatMulSpec{transpose_a, transpose_b});
}

void MatMulInto(const Tensor& dst, const Tensor& a, const Tensor& b,
                const MatMulSpec& spec, bool accumulate) {
  Apply(MatMulIntoOp(spec, accumulate), {dst, a, b});
}

Tensor Dot(const Tensor& a, const Tensor& b) {
  CH_CHECK(a.ndim() == 1 && b.sizes() == a.sizes())
      << "dot of " << a.Describe() << " and " << b.Describe();
  return Squeeze(Squeeze(MatMul(Unsqueeze(a, 0), Unsqueeze(b, 1)), 1), 0);
}

Tensor MatVec(const Tensor& a, const Tensor& v) {
  CH_CHECK(a.ndim() >= 2 && v.ndim() == 1 && a.size(-1) == v.size(0))
      << "matvec of " << a.Describe() << " and " << v.Describe();
  return Squeeze(MatMul(a, Unsqueeze(v, 1)), -1);
}

namespace {

Tensor AddProduct(const char* name, int ndim, const Tensor& c, const Tensor& a,
                  const Tensor& b, const AddMMOptions& options) {
  CH_CHECK(a.ndim() == ndim && b.ndim() == ndim && c.ndim() <= ndim)
      << name << " of " << c.Describe() << ", " << a.Describe() << " and "
      << b.Describe();
  const Tensor product = MatMul(a, b);
  CH_CHECK(BroadcastShapes(product.sizes(), c.sizes(), name) == product.sizes())
      << name << " of " << c.Describe() << " and a product of "
      << product.Describe();
  const Tensor scaled =
      options.alpha == 1 ? product : Mul(product, options.alpha);
  if (options.beta == 0) {
    // c is not read and may contain NaN.
    const Tensor nothing = ZerosLike(c);
    return Add(scaled, Where(Equal(nothing, nothing), nothing, c));
  }
  return options.beta == 1 ? Add(c, scaled) : Add(scaled, c, options.beta);
}

}  // namespace

Tensor AddMM(const Tensor& c, const Tensor& a, const Tensor& b,
             const AddMMOptions& options) {
  return AddProduct("addmm", 2, c, a, b, options);
}

Tensor BAddBMM(const Tensor& c, const Tensor& a, const Tensor& b,
               const AddMMOptions& options) {
  return AddProduct("baddbmm", 3, c, a, b, options);
}

namespace {

constexpr MatMulSpec kOfLinear = {.transpose_b = true};

/// Returns whether one kernel computes it. For distributed tensors the product
/// may be a pending sum, of which only one rank adds the bias.
bool IsOneKernel(const Tensor& x, const Tensor& w, const Tensor& bias) {
  return !x.is_distributed() && !w.is_distributed() && !bias.is_distributed() &&
         x.ndim() >= 2 && bias.ndim() == 1 && bias.dtype() == x.dtype() &&
         bias.is_contiguous() && bias.size(0) == w.size(0);
}

}  // namespace

TensorList LinearOp::Forward(TensorSpan inputs) const {
  const Tensor& x = inputs[0];
  const Tensor& w = inputs[1];
  const Tensor& bias = inputs[2];
  const Shape sizes = MatMulSizes(x.sizes(), w.sizes(), kOfLinear);
  CheckOperands(MatMulOp::kInfo.name, x, w);
  CH_CHECK(bias.dtype() == x.dtype() && bias.is_contiguous() &&
           bias.ndim() == 1 && bias.size(0) == sizes.back())
      << kInfo.name << " of " << x.Describe() << " by " << w.Describe()
      << " with a bias of " << bias.Describe();
  Tensor out = Empty(sizes, x.dtype());
  Compute(out, x, w, kOfLinear, /*accumulate=*/false, bias);
  return {std::move(out)};
}

std::shared_ptr<Node> LinearOp::Differentiate(TensorSpan inputs,
                                              TensorSpan /*outputs*/) const {
  return std::make_shared<MatMulNode>(kInfo, kOfLinear, inputs);
}

Tensor Linear(const Tensor& x, const Tensor& w, const Tensor& bias) {
  CH_CHECK_EQ(w.ndim(), 2) << "linear by " << w.Describe();
  if (bias.defined() && IsOneKernel(x, w, bias)) {
    return Apply1(LinearOp(), {x, w, bias});
  }
  Tensor y = MatMul(x, w, /*transpose_a=*/false, /*transpose_b=*/true);
  // y has no other users, so the bias is added in place.
  if (bias.defined()) AddInPlace(y, bias);
  return y;
}

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

  template <typename Operand>
  Operand As() const {
    auto* const data = static_cast<std::byte*>(of.raw_data());
    Operand operand;
    operand.data = data == nullptr ? data : data + first * SizeOf(of.dtype());
    operand.row_stride = of.strides()[static_cast<size_t>(row_dim)];
    operand.col_stride = of.strides()[static_cast<size_t>(col_dim)];
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
  LaunchMatMul(args);
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

Tensor GroupedMatMul(const Tensor& x, const Tensor& w, ShapeView offsets,
                     bool transpose_w) {
  return Apply1(GroupedMatMulOp(offsets, transpose_w), {x, w});
}

Tensor GroupedOuter(const Tensor& a, const Tensor& b, ShapeView offsets) {
  return Apply1(GroupedOuterOp(offsets), {a, b});
}

}  // namespace crosshatch
