// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_NORM_H_
#define CROSSHATCH_TENSOR_OPS_NORM_H_

/// \file
/// Normalizations over the last dim. Statistics are f32 (f64 for f64) tensors
/// of x's leading sizes.

#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// (x [..., C], weight [C]) -> (y, rstd [...]): y = x * rstd * weight,
/// rstd = 1 / sqrt(mean(x^2) + eps).
class RmsNormOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {.name = "rms_norm",
                                   .optional_inputs = 1 << 1};
  explicit RmsNormOp(double eps) : eps(eps) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override { AppendTo(key, eps); }

  const double eps;
};

/// (grad, x, weight, rstd) -> (dx, dweight), undefined if not needed.
class RmsNormBackwardOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {.name = "rms_norm_backward",
                                   .optional_inputs = 1 << 2};
  RmsNormBackwardOp(bool want_dx, bool want_dweight)
      : want_dx(want_dx), want_dweight(want_dweight) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  void AppendKey(OpKey& key) const override {
    AppendTo(key, want_dx, want_dweight);
  }

  const bool want_dx;
  const bool want_dweight;
};

/// (dst, grad, x, weight, rstd) -> (dst, dx): as RmsNormBackwardOp, with
/// dweight written or added to dst, of weight's dtype or f32. For local tensors
/// only.
class RmsNormBackwardIntoOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {.name = "rms_norm_backward_into",
                                   .in_place = true};
  RmsNormBackwardIntoOp(bool want_dx, bool accumulate)
      : want_dx(want_dx), accumulate(accumulate) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  void AppendKey(OpKey& key) const override {
    AppendTo(key, want_dx, accumulate);
  }

  const bool want_dx;
  const bool accumulate;
};

/// (x [..., C], weight [C], bias [C]) -> (y, mean [...], rstd [...]).
class LayerNormOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {.name = "layer_norm",
                                   .optional_inputs = 1 << 1 | 1 << 2};
  explicit LayerNormOp(double eps) : eps(eps) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override { AppendTo(key, eps); }

  const double eps;
};

/// (grad, x, weight, mean, rstd) -> (dx, dweight, dbias), undefined if not
/// needed.
class LayerNormBackwardOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {.name = "layer_norm_backward",
                                   .optional_inputs = 1 << 2};
  LayerNormBackwardOp(bool want_dx, bool want_dweight, bool want_dbias)
      : want_dx(want_dx), want_dweight(want_dweight), want_dbias(want_dbias) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  void AppendKey(OpKey& key) const override {
    AppendTo(key, want_dx, want_dweight, want_dbias);
  }

  const bool want_dx;
  const bool want_dweight;
  const bool want_dbias;
};

/// (x) -> softmax over the last dim, or its logarithm.
class SoftmaxOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"softmax"};
  explicit SoftmaxOp(bool log) : log(log) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override { AppendTo(key, log); }

  const bool log;
};

/// (grad, y) -> dx of SoftmaxOp.
class SoftmaxBackwardOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"softmax_backward"};
  explicit SoftmaxBackwardOp(bool log) : log(log) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  void AppendKey(OpKey& key) const override { AppendTo(key, log); }

  const bool log;
};

/// \param x [..., C]
/// \param weight [C], or undefined for ones
Tensor RmsNorm(const Tensor& x, const Tensor& weight, double eps);
/// \param weight [C], as `bias`; undefined for ones and zeros
Tensor LayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                 double eps);
Tensor Softmax(const Tensor& x, int64_t dim = -1);
Tensor LogSoftmax(const Tensor& x, int64_t dim = -1);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_NORM_H_
