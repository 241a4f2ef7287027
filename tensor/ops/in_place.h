// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_IN_PLACE_H_
#define CROSSHATCH_TENSOR_OPS_IN_PLACE_H_

/// \file
/// Ops that write into an existing tensor. `dst` keeps its sizes and dtype;
/// `src` broadcasts to it and is converted. `dst` may be a view, but not an
/// expanded tensor, several elements of which are one. `src` may overlap `dst`
/// only if it is the same view.
///
/// In grad mode the write becomes part of dst's history, and of that of its
/// base. A leaf that requires a gradient cannot be written. A view of a
/// distributed tensor can be written in NoGrad only.

#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// (dst, src): dst += alpha * src.
class AddInPlaceOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {.name = "add_in_place", .in_place = true};
  explicit AddInPlaceOp(double alpha) : alpha(alpha) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override { AppendTo(key, alpha); }

  const double alpha;
};

/// (dst, factor): dst *= factor. Not differentiable.
class MulInPlaceOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {
      .name = "mul_in_place",
      .in_place = true,
      .no_gradient = "it overwrites what its gradient needs; use Mul"};
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
};

/// (dst): dst *= factor.
class ScaleInPlaceOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {.name = "scale_in_place", .in_place = true};
  explicit ScaleInPlaceOp(double factor) : factor(factor) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override { AppendTo(key, factor); }

  const double factor;
};

/// (dst, src): dst = src.
class CopyInPlaceOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {.name = "copy_in_place", .in_place = true};
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
};

/// (dst): dst = value.
class FillInPlaceOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {.name = "fill_in_place", .in_place = true};
  explicit FillInPlaceOp(double value) : value(value) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override { AppendTo(key, value); }

  const double value;
};

void AddInPlace(const Tensor& dst, const Tensor& src, double alpha = 1);
/// Multiplies by a tensor, e.g. one element that the host has not read. Not
/// differentiable.
void MulInPlace(const Tensor& dst, const Tensor& factor);
void MulInPlace(const Tensor& dst, double factor);
void CopyInPlace(const Tensor& dst, const Tensor& src);
void FillInPlace(const Tensor& dst, double value);
void ZeroInPlace(const Tensor& dst);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_IN_PLACE_H_
