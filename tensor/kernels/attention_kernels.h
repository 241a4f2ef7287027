// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_ATTENTION_KERNELS_H_
#define CROSSHATCH_TENSOR_KERNELS_ATTENTION_KERNELS_H_

/// \file
/// Attention and rotary embedding, on tensors of heads.

#include <cstdint>

#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/kernels/operands.h"

namespace crosshatch {

/// A tensor [B, T, H, D] whose D is contiguous.
struct HeadsInput {
  const void* data = nullptr;
  int64_t batch_stride = 0;
  int64_t time_stride = 0;
  int64_t head_stride = 0;
};
struct HeadsOutput {
  void* data = nullptr;
  int64_t batch_stride = 0;
  int64_t time_stride = 0;
  int64_t head_stride = 0;
};

/// out = softmax(scores) v for each head. The score of a query and a key that
/// it attends to is scale * q k^T + mask - slope * |distance|. Query head h
/// uses key head h / (q_heads / kv_heads).
///
/// Query i has position o = i + kv_len - q_len. It attends to key j if all of
/// these hold: causal: j <= o; with a window w: j > o - w; with key_ranges:
/// ranges[i][0] <= j < ranges[i][1]; with a bool mask: its element is true. The
/// distance is o - j.
///
/// A query without keys, or whose scores are all -inf, gives zeros, a
/// log-sum-exp of -inf, and probabilities of zero in the gradients. Memory
/// besides the operands is of the order of tiles, never q_len x kv_len. Fully
/// masked tiles are skipped.
///
/// With dropout each probability is 0 or divided by 1 - dropout, before the
/// product with v: 0 if the uniform number (RandomArgs) of its element of
/// [rows, total_heads, q_len, kv_len] is below dropout. first_row and
/// first_head are the offsets of the local batch rows and heads in that tensor.
/// The log-sum-exp is that without dropout.
struct AttentionArgs {
  int64_t batch = 0;
  int64_t q_len = 0;
  int64_t kv_len = 0;
  int64_t q_heads = 0;
  int64_t kv_heads = 0;  ///< Divides q_heads.
  int64_t head_dim = 0;
  HeadsInput q;     ///< [batch, q_len, q_heads, head_dim]
  HeadsInput k;     ///< [batch, kv_len, kv_heads, head_dim]
  HeadsInput v;     ///< as k
  HeadsOutput out;  ///< as q
  /// Contiguous [batch, q_heads, q_len], of StatisticsDType(dtype): natural
  /// log-sum-exp of the scores.
  void* logsumexp = nullptr;
  DType dtype = DType::kFloat32;
  double scale = 1;
  bool causal = true;
  int64_t window = 0;  ///< 0: no bound.
  /// [batch, q_heads, q_len, kv_len], bool or floating point. Null data: none.
  KernelInput mask;
  /// [batch, q_len, 2], the last two dims contiguous. Null: none. Indices
  /// outside of 0 .. kv_len are no keys.
  const int32_t* key_ranges = nullptr;
  int64_t key_ranges_batch_stride = 0;
  const float* slopes = nullptr;  ///< Contiguous [q_heads]. Null: none.
  double dropout = 0;             ///< In [0, 1].
  uint64_t dropout_key = 0;
  uint64_t dropout_stream = 0;
  int64_t first_row = 0;
  int64_t first_head = 0;
  int64_t total_heads = 0;
  /// attention_workspace_bytes(args) bytes, aligned to 64.
  void* workspace = nullptr;
};

/// Gradients of AttentionArgs: dq, dk and dv are overwritten, all three.
struct AttentionBackwardArgs {
  /// Of the forward call; `out` and `logsumexp` are read. Its workspace is not
  /// used.
  AttentionArgs forward;
  HeadsInput grad;  ///< as q: the gradient of out
  HeadsOutput dq;
  HeadsOutput dk;
  HeadsOutput dv;
  /// attention_backward_workspace_bytes(args) bytes, aligned to 64.
  void* workspace = nullptr;
};

/// Rotates pairs (x[i], x[i + D/2]) of a [B, T, H, D] tensor (Hugging Face's
/// rotate_half form): out[i] = x[i] cos - x[i + D/2] sin,
/// out[i + D/2] = x[i + D/2] cos + x[i] sin.
struct RopeArgs {
  int64_t batch = 0;
  int64_t time = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;  ///< Even.
  HeadsInput x;
  HeadsOutput out;
  /// [time, head_dim / 2], contiguous, for each batch row.
  const float* cos = nullptr;
  const float* sin = nullptr;
  DType dtype = DType::kFloat32;
  bool inverse = false;  ///< Rotates back: the gradient.
  /// Stride from one batch row's cos and sin to the next; 0: shared by all.
  int64_t table_batch_stride = 0;
};

/// The list of this family (kernel_table.h).
#define CH_ATTENTION_KERNELS(K, W, d)                                \
  W(d, attention, Attention, AttentionArgs)                          \
  W(d, attention_backward, AttentionBackward, AttentionBackwardArgs) \
  K(d, rope, Rope, RopeArgs)

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_KERNELS_ATTENTION_KERNELS_H_
