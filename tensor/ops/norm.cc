// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/norm.h"

#include <bit>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/launch.h"

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

void RmsNormOp::AppendKey(OpKey& key) const {
  key.push_back(std::bit_cast<int64_t>(eps));
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

void RmsNormBackwardOp::AppendKey(OpKey& key) const {
  key.push_back(want_dx | want_dweight << 1);
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

void RmsNormBackwardIntoOp::AppendKey(OpKey& key) const {
  key.push_back(want_dx | accumulate << 1);
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

void LayerNormOp::AppendKey(OpKey& key) const {
  key.push_back(std::bit_cast<int64_t>(eps));
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

void LayerNormBackwardOp::AppendKey(OpKey& key) const {
  key.push_back(want_dx | want_dweight << 1 | want_dbias << 2);
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

void SoftmaxOp::AppendKey(OpKey& key) const { key.push_back(log); }

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

void SoftmaxBackwardOp::AppendKey(OpKey& key) const { key.push_back(log); }

}  // namespace crosshatch
