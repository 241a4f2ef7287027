// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/norm.h"

#include <bit>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/launch.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/ops/saving_node.h"
#include "crosshatch/tensor/ops/view.h"

namespace crosshatch {
namespace {

using internal::Dense;
using internal::Launch;
using internal::LaunchWithWorkspace;
using internal::Rows;
using internal::ToRows;

Tensor Columns(const char* op, const char* what, const Tensor& columns,
               const Tensor& x) {
  if (!columns.defined()) return columns;
  CH_CHECK(columns.sizes() == Shape({x.size(-1)}))
      << op << " of " << x.Describe() << " with " << what << " "
      << columns.Describe();
  internal::CheckSameDType(op, x, columns);
  return Dense(columns);
}

const void* DataOrNull(const Tensor& tensor) {
  return tensor.defined() ? tensor.raw_data() : nullptr;
}

void CheckInput(const char* op, const Tensor& x) {
  CH_CHECK_GE(x.ndim(), 1) << op << " of " << x.Describe();
  internal::CheckFloating(op, x);
}

void CheckGrad(const char* op, const Tensor& grad, const Tensor& x) {
  CH_CHECK(grad.sizes() == x.sizes())
      << op << " of " << grad.Describe() << " and " << x.Describe();
  internal::CheckSameDType(op, grad, x);
}

Tensor Statistics(const Tensor& x) {
  return Empty(internal::LeadingSizes(x.sizes()), StatisticsDType(x.dtype()));
}

/// Computes dx and dweight if they are defined.
void RmsNormBackward(const char* op, TensorSpan inputs, const Tensor& dx,
                     const Tensor& dweight, WriteMode mode) {
  const Tensor& x = inputs[1];
  CheckGrad(op, inputs[0], x);
  const Rows grad_rows = ToRows(inputs[0]);
  const Rows x_rows = ToRows(x);
  const Tensor weight = Columns(op, "weight", inputs[2], x);
  const Tensor rstd = Dense(inputs[3]);
  RmsNormBackwardArgs args;
  args.rows = x_rows.rows;
  args.cols = x_rows.cols;
  args.grad = grad_rows.input();
  args.x = x_rows.input();
  args.weight = DataOrNull(weight);
  args.rstd = rstd.raw_data();
  args.dtype = x.dtype();
  args.want_dx = dx.defined();
  args.want_dweight = dweight.defined();
  if (dx.defined()) args.dx = ToRows(dx).output();
  if (dweight.defined()) {
    args.dweight = dweight.raw_data();
    args.dweight_dtype = dweight.dtype();
    args.dweight_mode = mode;
  }
  LaunchWithWorkspace(&KernelTable::rms_norm_backward_workspace_bytes,
                      &KernelTable::rms_norm_backward, args);
}

}  // namespace

TensorList RmsNormOp::Forward(TensorSpan inputs) const {
  const Tensor& x = inputs[0];
  CheckInput(kInfo.name, x);
  const Tensor weight = Columns(kInfo.name, "weight", inputs[1], x);
  const Rows rows = ToRows(x);
  Tensor out = Empty(x.sizes(), x.dtype());
  Tensor rstd = Statistics(x);
  RmsNormArgs args;
  args.rows = rows.rows;
  args.cols = rows.cols;
  args.x = rows.input();
  args.weight = DataOrNull(weight);
  args.out = {out.raw_data(), rows.cols};
  args.rstd = rstd.raw_data();
  args.dtype = x.dtype();
  args.eps = eps;
  Launch(&KernelTable::rms_norm, args);
  return {std::move(out), std::move(rstd)};
}

TensorList RmsNormBackwardOp::Forward(TensorSpan inputs) const {
  const Tensor& x = inputs[1];
  Tensor dx;
  Tensor dweight;
  if (want_dx) dx = Empty(x.sizes(), x.dtype());
  if (want_dweight) dweight = Empty({x.size(-1)}, x.dtype());
  RmsNormBackward(kInfo.name, inputs, dx, dweight, WriteMode::kOverwrite);
  return {std::move(dx), std::move(dweight)};
}

TensorList RmsNormBackwardIntoOp::Forward(TensorSpan inputs) const {
  const Tensor& dst = inputs[0];
  const Tensor& x = inputs[2];
  CH_CHECK(dst.sizes() == Shape({x.size(-1)}) && dst.is_contiguous())
      << kInfo.name << " of " << x.Describe() << " into " << dst.Describe();
  BeginWrite(kInfo.name, dst);
  Tensor dx;
  if (want_dx) dx = Empty(x.sizes(), x.dtype());
  RmsNormBackward(kInfo.name, inputs.subspan(1), dx, dst,
                  accumulate ? WriteMode::kAccumulate : WriteMode::kOverwrite);
  return {dst, std::move(dx)};
}

TensorList LayerNormOp::Forward(TensorSpan inputs) const {
  const Tensor& x = inputs[0];
  CheckInput(kInfo.name, x);
  const Tensor weight = Columns(kInfo.name, "weight", inputs[1], x);
  const Tensor bias = Columns(kInfo.name, "bias", inputs[2], x);
  const Rows rows = ToRows(x);
  Tensor out = Empty(x.sizes(), x.dtype());
  Tensor mean = Statistics(x);
  Tensor rstd = Statistics(x);
  LayerNormArgs args;
  args.rows = rows.rows;
  args.cols = rows.cols;
  args.x = rows.input();
  args.weight = DataOrNull(weight);
  args.bias = DataOrNull(bias);
  args.out = {out.raw_data(), rows.cols};
  args.mean = mean.raw_data();
  args.rstd = rstd.raw_data();
  args.dtype = x.dtype();
  args.eps = eps;
  Launch(&KernelTable::layer_norm, args);
  return {std::move(out), std::move(mean), std::move(rstd)};
}

TensorList LayerNormBackwardOp::Forward(TensorSpan inputs) const {
  const Tensor& x = inputs[1];
  CheckGrad(kInfo.name, inputs[0], x);
  const Rows grad_rows = ToRows(inputs[0]);
  const Rows x_rows = ToRows(x);
  const Tensor weight = Columns(kInfo.name, "weight", inputs[2], x);
  const Tensor mean = Dense(inputs[3]);
  const Tensor rstd = Dense(inputs[4]);
  Tensor dx;
  Tensor dweight;
  Tensor dbias;
  LayerNormBackwardArgs args;
  if (want_dx) {
    dx = Empty(x.sizes(), x.dtype());
    args.dx = ToRows(dx).output();
  }
  if (want_dweight) {
    dweight = Empty({x.size(-1)}, x.dtype());
    args.dweight = dweight.raw_data();
  }
  if (want_dbias) {
    dbias = Empty({x.size(-1)}, x.dtype());
    args.dbias = dbias.raw_data();
  }
  args.rows = x_rows.rows;
  args.cols = x_rows.cols;
  args.grad = grad_rows.input();
  args.x = x_rows.input();
  args.weight = DataOrNull(weight);
  args.mean = mean.raw_data();
  args.rstd = rstd.raw_data();
  args.dtype = x.dtype();
  args.dweight_dtype = x.dtype();
  args.want_dx = want_dx;
  args.want_dweight = want_dweight;
  args.want_dbias = want_dbias;
  LaunchWithWorkspace(&KernelTable::layer_norm_backward_workspace_bytes,
                      &KernelTable::layer_norm_backward, args);
  return {std::move(dx), std::move(dweight), std::move(dbias)};
}

TensorList SoftmaxOp::Forward(TensorSpan inputs) const {
  const Tensor& x = inputs[0];
  CheckInput(kInfo.name, x);
  const Rows rows = ToRows(x);
  Tensor out = Empty(x.sizes(), x.dtype());
  SoftmaxArgs args;
  args.rows = rows.rows;
  args.cols = rows.cols;
  args.x = rows.input();
  args.out = {out.raw_data(), rows.cols};
  args.dtype = x.dtype();
  args.log = log;
  Launch(&KernelTable::softmax, args);
  return {std::move(out)};
}

TensorList SoftmaxBackwardOp::Forward(TensorSpan inputs) const {
  CheckGrad(kInfo.name, inputs[0], inputs[1]);
  const Rows grad = ToRows(inputs[0]);
  const Rows y = ToRows(inputs[1]);
  Tensor dx = Empty(inputs[1].sizes(), inputs[1].dtype());
  SoftmaxBackwardArgs args;
  args.rows = y.rows;
  args.cols = y.cols;
  args.y = y.input();
  args.grad = grad.input();
  args.dx = {dx.raw_data(), y.cols};
  args.dtype = dx.dtype();
  args.log = log;
  Launch(&KernelTable::softmax_backward, args);
  return {std::move(dx)};
}

namespace {

Tensor MeanOfRows(const Tensor& x) { return Mean(x, {-1}, /*keepdim=*/true); }

Tensor Weighted(const Tensor& g, const Tensor& weight) {
  return weight.defined() ? Mul(g, weight) : g;
}

/// Returns the gradient by x of `normal`, which is x * rstd or, if `centered`,
/// (x - mean) * rstd.
Tensor NormalizedGradient(const Tensor& g, const Tensor& normal,
                          const Tensor& rstd, bool centered) {
  Tensor inner = Sub(g, Mul(normal, MeanOfRows(Mul(g, normal))));
  if (centered) inner = Sub(inner, MeanOfRows(g));
  return Mul(inner, rstd);
}

class RmsNormNode final : public SavingNode<3> {
 public:
  RmsNormNode(double eps, const Tensor& x, const Tensor& weight,
              const Tensor& rstd)
      : SavingNode(RmsNormOp::kInfo), eps_(eps), has_weight_(weight.defined()) {
    Save(0, x);
    if (has_weight_) Save(1, weight);
    SaveOutput(2, rstd, 1);
  }

  void Backward(TensorSpan output_grads, GradientSlots& slots) override {
    const Tensor& g = output_grads[0];
    const Tensor x = Saved(0);
    const Tensor weight = has_weight_ ? Saved(1) : Tensor();
    if (Recording()) {
      const Tensor rstd = Rsqrt(Add(MeanOfRows(Square(x)), eps_));
      const Tensor normal = Mul(x, rstd);
      slots.Put(0, NormalizedGradient(Weighted(g, weight), normal, rstd,
                                      /*centered=*/false));
      if (slots.Needed(1)) {
        slots.Put(1, SumTo(Mul(g, normal), weight.sizes()));
      }
      return;
    }
    const bool want_dx = slots.Needed(0);
    if (slots.Needed(1) && !weight.is_distributed()) {
      const GradDestination* destination = slots.Destination(1);
      if (destination != nullptr && Takes(*destination, g)) {
        TensorList results =
            Apply(RmsNormBackwardIntoOp(want_dx, destination->accumulate),
                  {destination->tensor, g, x, weight, Saved(2)});
        slots.MarkWritten(1);
        slots.Put(0, std::move(results[1]));
        return;
      }
    }
    TensorList results = Apply(RmsNormBackwardOp(want_dx, slots.Needed(1)),
                               {g, x, weight, Saved(2)});
    slots.Put(0, std::move(results[0]));
    slots.Put(1, std::move(results[1]));
  }

 private:
  static bool Takes(const GradDestination& destination, const Tensor& g) {
    const Tensor& to = destination.tensor;
    return !to.is_distributed() && !g.is_distributed() && to.is_contiguous() &&
           (to.dtype() == g.dtype() ||
            (to.dtype() == kFloat32 && SizeOf(g.dtype()) == 2));
  }

  const double eps_;
  const bool has_weight_;
};

class LayerNormNode final : public SavingNode<4> {
 public:
  LayerNormNode(double eps, TensorSpan inputs, TensorSpan outputs)
      : SavingNode(LayerNormOp::kInfo),
        eps_(eps),
        has_weight_(inputs[1].defined()),
        cols_(inputs[0].size(-1)) {
    Save(0, inputs[0]);
    if (has_weight_) Save(1, inputs[1]);
    SaveOutput(2, outputs[1], 1);
    SaveOutput(3, outputs[2], 2);
  }

  void Backward(TensorSpan output_grads, GradientSlots& slots) override {
    const Tensor& g = output_grads[0];
    const Tensor x = Saved(0);
    const Tensor weight = has_weight_ ? Saved(1) : Tensor();
    if (Recording()) {
      const Tensor centered = Sub(x, MeanOfRows(x));
      const Tensor rstd = Rsqrt(Add(MeanOfRows(Square(centered)), eps_));
      const Tensor normal = Mul(centered, rstd);
      slots.Put(0, NormalizedGradient(Weighted(g, weight), normal, rstd,
                                      /*centered=*/true));
      if (slots.Needed(1)) slots.Put(1, SumTo(Mul(g, normal), {cols_}));
      if (slots.Needed(2)) slots.Put(2, SumTo(g, {cols_}));
      return;
    }
    TensorList results = Apply(
        LayerNormBackwardOp(slots.Needed(0), slots.Needed(1), slots.Needed(2)),
        {g, x, weight, Saved(2), Saved(3)});
    for (int i = 0; i < 3; ++i) {
      slots.Put(i, std::move(results[static_cast<size_t>(i)]));
    }
  }

 private:
  const double eps_;
  const bool has_weight_;
  const int64_t cols_;
};

Tensor SoftmaxOver(const Tensor& x, int64_t dim, bool log) {
  const int d = NormalizeDim(dim, x.ndim(), SoftmaxOp::kInfo.name);
  const int last = x.ndim() - 1;
  if (d == last) return Apply1(SoftmaxOp(log), {&x, 1});
  const Tensor swapped = Transpose(x, d, last);
  return Transpose(Apply1(SoftmaxOp(log), {&swapped, 1}), d, last);
}

}  // namespace

std::shared_ptr<Node> RmsNormOp::Differentiate(TensorSpan inputs,
                                               TensorSpan outputs) const {
  return std::make_shared<RmsNormNode>(eps, inputs[0], inputs[1], outputs[1]);
}

std::shared_ptr<Node> LayerNormOp::Differentiate(TensorSpan inputs,
                                                 TensorSpan outputs) const {
  return std::make_shared<LayerNormNode>(eps, inputs, outputs);
}

std::shared_ptr<Node> SoftmaxOp::Differentiate(TensorSpan /*inputs*/,
                                               TensorSpan outputs) const {
  auto node = MakeNode<1>(kInfo, [log = log](const auto& self, TensorSpan grads,
                                             GradientSlots& slots) {
    const Tensor& g = grads[0];
    const Tensor y = self.Saved(0);
    if (!Recording()) {
      slots.Put(0, Apply1(SoftmaxBackwardOp(log), {g, y}));
    } else if (log) {
      slots.Put(0, Sub(g, Mul(Exp(y), Sum(g, {-1}, /*keepdim=*/true))));
    } else {
      slots.Put(0, Mul(y, Sub(g, Sum(Mul(g, y), {-1}, /*keepdim=*/true))));
    }
  });
  node->SaveOutput(0, outputs[0]);
  return node;
}

Tensor RmsNorm(const Tensor& x, const Tensor& weight, double eps) {
  return Apply1(RmsNormOp(eps), {x, weight});
}

Tensor LayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                 double eps) {
  return Apply1(LayerNormOp(eps), {x, weight, bias});
}

Tensor Softmax(const Tensor& x, int64_t dim) {
  return SoftmaxOver(x, dim, /*log=*/false);
}

Tensor LogSoftmax(const Tensor& x, int64_t dim) {
  return SoftmaxOver(x, dim, /*log=*/true);
}

}  // namespace crosshatch
