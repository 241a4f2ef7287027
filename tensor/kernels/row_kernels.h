// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_ROW_KERNELS_H_
#define CROSSHATCH_TENSOR_KERNELS_ROW_KERNELS_H_

/// \file
/// Kernels of matrices [rows, cols] whose columns are contiguous: softmax,
/// norms, losses, embeddings.

#include <cstdint>

#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/kernels/operands.h"

namespace crosshatch {

struct RowsInput {
  const void* data = nullptr;
  int64_t row_stride = 0;
};
struct RowsOutput {
  void* data = nullptr;
  int64_t row_stride = 0;
};

/// out = softmax of each row, or its logarithm.
struct SoftmaxArgs {
  int64_t rows = 0;
  int64_t cols = 0;
  RowsInput x;
  RowsOutput out;
  DType dtype = DType::kFloat32;
  bool log = false;
};

/// dx = (grad - sum(grad * y)) * y, or for the logarithm
/// grad - exp(y) * sum(grad).
struct SoftmaxBackwardArgs {
  int64_t rows = 0;
  int64_t cols = 0;
  RowsInput y;  ///< Output of the forward call.
  RowsInput grad;
  RowsOutput dx;
  DType dtype = DType::kFloat32;
  bool log = false;
};

/// out = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + eps).
struct RmsNormArgs {
  int64_t rows = 0;
  int64_t cols = 0;
  RowsInput x;
  const void* weight = nullptr;  ///< Contiguous [cols], of `dtype`; null: ones.
  RowsOutput out;
  void* rstd = nullptr;  ///< Contiguous [rows], of StatisticsDType(dtype).
  DType dtype = DType::kFloat32;
  double eps = 0;
};

/// Gradients of RmsNormArgs. dx is overwritten; null outputs are not computed.
struct RmsNormBackwardArgs {
  int64_t rows = 0;
  int64_t cols = 0;
  RowsInput grad;
  RowsInput x;
  const void* weight = nullptr;
  const void* rstd = nullptr;
  RowsOutput dx;
  /// Contiguous [cols], of dweight_dtype (`dtype`, or f32 for 16-bit ones).
  void* dweight = nullptr;
  DType dtype = DType::kFloat32;
  DType dweight_dtype = DType::kFloat32;
  WriteMode dweight_mode = WriteMode::kOverwrite;
  bool want_dx = true;
  bool want_dweight = true;
  /// rms_norm_backward_workspace_bytes(args) bytes, aligned to 64.
  void* workspace = nullptr;
};

/// out = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(var(x) + eps).
struct LayerNormArgs {
  int64_t rows = 0;
  int64_t cols = 0;
  RowsInput x;
  const void* weight = nullptr;  ///< Contiguous [cols]; null: ones.
  const void* bias = nullptr;    ///< Contiguous [cols]; null: zeros.
  RowsOutput out;
  void* mean = nullptr;  ///< Contiguous [rows], of StatisticsDType(dtype).
  void* rstd = nullptr;  ///< As mean.
  DType dtype = DType::kFloat32;
  double eps = 0;
};

/// Gradients of LayerNormArgs, as in RmsNormBackwardArgs.
struct LayerNormBackwardArgs {
  int64_t rows = 0;
  int64_t cols = 0;
  RowsInput grad;
  RowsInput x;
  const void* weight = nullptr;
  const void* mean = nullptr;
  const void* rstd = nullptr;
  RowsOutput dx;
  void* dweight = nullptr;
  void* dbias = nullptr;
  DType dtype = DType::kFloat32;
  DType dweight_dtype = DType::kFloat32;  ///< Of dbias too.
  WriteMode dweight_mode = WriteMode::kOverwrite;
  WriteMode dbias_mode = WriteMode::kOverwrite;
  bool want_dx = true;
  bool want_dweight = true;
  bool want_dbias = true;
  /// layer_norm_backward_workspace_bytes(args) bytes, aligned to 64.
  void* workspace = nullptr;
};

/// Class indices of rows.
struct TargetsInput {
  const void* data = nullptr;   ///< Contiguous [rows].
  DType dtype = DType::kInt64;  ///< i32, i64 or u16.
  /// Rows of this class have no loss and no gradient.
  int64_t ignore_index = -100;
};

/// loss[r] = logsumexp[r] - logits[r, target[r]], 0 for ignored rows. Targets
/// are in [0, cols) or ignored (checked).
struct CrossEntropyArgs {
  int64_t rows = 0;
  int64_t cols = 0;
  RowsInput logits;
  TargetsInput targets;
  void* loss = nullptr;       ///< Contiguous [rows], StatisticsDType(dtype).
  void* logsumexp = nullptr;  ///< As loss.
  DType dtype = DType::kFloat32;
};

/// The parts for logits that hold only the classes [first, first + cols):
/// sum_exp[r] = sum of exp(logits[r, :] - row_max[r]); picked[r] = logits[r,
/// target - first] if the target is among these classes, else 0. Loss =
/// log(total sum_exp) + row_max - total picked. (row_max: reduce.)
struct CrossEntropyShardArgs {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t first = 0;
  RowsInput logits;
  TargetsInput targets;
  const void* row_max =
      nullptr;              ///< Contiguous [rows], StatisticsDType(dtype).
  void* sum_exp = nullptr;  ///< As row_max.
  void* picked = nullptr;   ///< As row_max.
  DType dtype = DType::kFloat32;
};

/// dlogits[r, c] = (exp(logits[r, c] - logsumexp[r]) - [first + c ==
/// target[r]])
/// * grad[r]; zeros for ignored rows. May overwrite the logits.
struct CrossEntropyBackwardArgs {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t first = 0;  ///< Class of column 0.
  RowsInput logits;
  TargetsInput targets;
  const void* logsumexp = nullptr;  ///< Contiguous [rows], StatisticsDType.
  const void* grad = nullptr;       ///< [rows], StatisticsDType(dtype).
  int64_t grad_stride = 1;          ///< 0: the same for all rows.
  RowsOutput dlogits;
  DType dtype = DType::kFloat32;
};

/// out[r] = table[ids[r] - first], zeros if the id is outside of [first, first
/// + table_rows).
struct EmbeddingArgs {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t first = 0;
  int64_t table_rows = 0;
  const void* ids = nullptr;        ///< Contiguous [rows].
  DType ids_dtype = DType::kInt64;  ///< i32, i64 or u16.
  RowsInput table;
  RowsOutput out;
  DType dtype = DType::kFloat32;  ///< Of table and out: any.
};

/// dtable[id - first] (=, +=) the sum, in order of r, of grad[r] over the rows
/// with that id. Ids outside of [first, first + table_rows) are skipped.
struct EmbeddingBackwardArgs {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t first = 0;
  int64_t table_rows = 0;
  const void* ids = nullptr;
  DType ids_dtype = DType::kInt64;
  RowsInput grad;
  RowsOutput dtable;
  DType dtype = DType::kFloat32;         ///< Of grad: floating point.
  DType dtable_dtype = DType::kFloat32;  ///< `dtype`, or f32 for 16-bit ones.
  WriteMode mode = WriteMode::kOverwrite;
  /// embedding_backward_workspace_bytes(args) bytes, aligned to 64.
  void* workspace = nullptr;
};

/// The list of this family (kernel_table.h).
#define CH_ROW_KERNELS(K, W, d)                                                \
  K(d, softmax, Softmax, SoftmaxArgs)                                          \
  K(d, softmax_backward, SoftmaxBackward, SoftmaxBackwardArgs)                 \
  K(d, rms_norm, RmsNorm, RmsNormArgs)                                         \
  W(d, rms_norm_backward, RmsNormBackward, RmsNormBackwardArgs)                \
  K(d, layer_norm, LayerNorm, LayerNormArgs)                                   \
  W(d, layer_norm_backward, LayerNormBackward, LayerNormBackwardArgs)          \
  K(d, cross_entropy, CrossEntropy, CrossEntropyArgs)                          \
  K(d, cross_entropy_shard, CrossEntropyShard, CrossEntropyShardArgs)          \
  K(d, cross_entropy_backward, CrossEntropyBackward, CrossEntropyBackwardArgs) \
  K(d, embedding, Embedding, EmbeddingArgs)                                    \
  W(d, embedding_backward, EmbeddingBackward, EmbeddingBackwardArgs)

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_KERNELS_ROW_KERNELS_H_
