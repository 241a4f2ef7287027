// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_EMBEDDING_H_
#define CROSSHATCH_TENSOR_OPS_EMBEDDING_H_

/// \file
/// Embedding tables. Ids are i32, i64 or u16.

#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// (ids [...], weight [R, C]) -> [..., C]: row id - first_row of the table, or
/// zeros for ids outside of [first_row, first_row + R). A table that is a shard
/// of the rows thus looks up its part. Every id must be in [0, bound), the rows
/// of the global table, checked.
class EmbeddingOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"embedding"};
  EmbeddingOp(int64_t first_row, int64_t bound)
      : first_row(first_row), bound(bound) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override { AppendTo(key, first_row, bound); }

  const int64_t first_row;
  const int64_t bound;
};

/// (ids [...], grad [..., C]) -> [num_rows, C]: the sums of grad's rows by id.
class EmbeddingGradOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"embedding_grad"};
  EmbeddingGradOp(int64_t num_rows, int64_t first_row)
      : num_rows(num_rows), first_row(first_row) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override {
    AppendTo(key, num_rows, first_row);
  }

  const int64_t num_rows;
  const int64_t first_row;
};

/// (dst [R, C], ids [...], grad [..., C]): dst = or += the sums. dst has grad's
/// dtype or f32. Not differentiable.
class EmbeddingGradIntoOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {.name = "embedding_grad_into",
                                   .in_place = true,
                                   .no_gradient = "it writes a gradient"};
  EmbeddingGradIntoOp(int64_t first_row, bool accumulate)
      : first_row(first_row), accumulate(accumulate) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  void AppendKey(OpKey& key) const override {
    AppendTo(key, first_row, accumulate);
  }

  const int64_t first_row;
  const bool accumulate;
};

/// Returns the rows of `weight` at `ids`.
/// \param ids [...]
/// \param weight [rows, C]
/// \returns [..., C]
Tensor Embedding(const Tensor& ids, const Tensor& weight);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_EMBEDDING_H_
