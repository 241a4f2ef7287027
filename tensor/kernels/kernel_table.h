// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_KERNEL_TABLE_H_
#define CROSSHATCH_TENSOR_KERNELS_KERNEL_TABLE_H_

/// \file
/// The kernels of a device: one table of functions of pointers, sizes, strides
/// and dtypes. Each device fills the same table (cpu/cpu_kernels.h).
///
/// Common to all kernels:
/// - Args are plain values: an op copies one into the task it launches. What
///   they point to must stay valid until the work is done.
/// - Sizes, strides and counts are in elements, workspaces in bytes. Strides
///   may be zero (broadcast) for inputs, and negative.
/// - A size of zero is fine everywhere; the pointers may then be null.
/// - The caller has checked shapes and dtypes; a combination that a kernel does
///   not have fails a check that names the kernel.
/// - bf16 and f16 are computed in float32 and rounded once, when written; f64
///   in float64. Integer arithmetic wraps.
/// - Results depend on the args alone, bit for bit, and not on the number of
///   threads. No kernel allocates: those that need memory of their own say how
///   much by a *_workspace_bytes function (of sizes, strides and dtypes, never
///   of pointers) and take it in the args.
/// - Outputs do not overlap inputs, except that an elementwise kernel (unary,
///   binary, where, silu_mul, rope, softmax, cross_entropy_backward, the norms'
///   forward) may write exactly in place of an input of the same dtype and
///   strides.

#include <cstdint>

#include "crosshatch/base/reduce_op.h"
#include "crosshatch/tensor/dtype.h"

namespace crosshatch {

struct KernelContext;

/// Most dims that a kernel takes.
inline constexpr int kMaxKernelDims = 8;

/// Sizes that the operands of a kernel share, outermost first.
struct KernelShape {
  int ndim = 0;
  int64_t sizes[kMaxKernelDims] = {};
};

/// A strided operand that is read. Strides are those of the kernel's shape, 0
/// where the operand is broadcast.
struct KernelInput {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t strides[kMaxKernelDims] = {};
};

/// A strided operand that is written; no two elements overlap.
struct KernelOutput {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t strides[kMaxKernelDims] = {};
};

/// What happens to the old content of an output.
enum class WriteMode : uint8_t {
  kOverwrite,   ///< It is not read: undefined memory is fine.
  kAccumulate,  ///< The result is added to it (in the compute type).
};

/// Dtype of what a kernel keeps beside a result of `dtype` (log-sum-exp, mean,
/// 1/std, row losses): f64 for f64, else f32.
constexpr DType StatisticsDType(DType dtype) {
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

/// \name Data movement
/// @{

/// out = src, converted to out's dtype: any dtype to any other. Float to
/// integer truncates towards zero (NaN gives 0, out of range the nearest
/// limit), integer to narrower integer wraps, anything to bool asks for != 0,
/// and f64 reaches 16-bit floats by way of f32.
struct CopyArgs {
  KernelShape shape;
  KernelInput src;
  KernelOutput out;
  /// Floating point and integers only: out += src.
  WriteMode mode = WriteMode::kOverwrite;
};

/// out = value, converted.
struct FillArgs {
  KernelShape shape;
  KernelOutput out;
  double value = 0;
};

/// out[i] = start + i * step, for contiguous out.
struct ArangeArgs {
  void* out = nullptr;
  DType dtype = DType::kInt64;
  int64_t count = 0;
  double start = 0;
  double step = 1;
};

/// @}
/// \name Pointwise
/// @{

enum class UnaryOp : uint8_t {
  // Floating point and integers.
  kNeg,
  kAbs,
  kSign,  ///< -1, 0 or 1.
  kSquare,
  kRelu,
  kAddScalar,    ///< a + scalar
  kMulScalar,    ///< a * scalar
  kScalarMinus,  ///< scalar - a
  kMaxScalar,    ///< max(a, scalar); NaN stays.
  kMinScalar,    ///< min(a, scalar); NaN stays.
  // Floating point only.
  kExp,
  kLog,
  kSqrt,
  kRsqrt,
  kReciprocal,
  kTanh,
  kSigmoid,
  kSilu,       ///< a * sigmoid(a)
  kGelu,       ///< The tanh form.
  kPowScalar,  ///< a ^ scalar
  // Bool only.
  kNot,
};

/// out (=, +=) op(a). Dtypes are equal, except that with a 16-bit float `a` out
/// may be f32 and the other way round.
struct UnaryArgs {
  UnaryOp op = UnaryOp::kNeg;
  KernelShape shape;
  KernelInput a;
  KernelOutput out;
  double scalar = 0;
  WriteMode mode = WriteMode::kOverwrite;
};

enum class BinaryOp : uint8_t {
  // Floating point and integers.
  kAdd,  ///< a + alpha * b
  kSub,  ///< a - alpha * b
  kMul,
  kDiv,  ///< Integers: towards zero; by zero gives 0.
  kMax,  ///< NaN if either is.
  kMin,  ///< NaN if either is.
  // Floating point only.
  kPow,
  // Derivatives, floating point only: a is the output's gradient.
  kReluBackward,     ///< a where b > 0, else 0; b = input or output.
  kSiluBackward,     ///< b = input.
  kGeluBackward,     ///< b = input.
  kTanhBackward,     ///< b = output: a * (1 - b^2).
  kSigmoidBackward,  ///< b = output: a * b * (1 - b).
  // Any dtype; out is bool.
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  // Bool only.
  kAnd,
  kOr,
};

/// out (=, +=) a op b. The dtypes of a, b and out are equal (out is bool for
/// comparisons), except that 16-bit floats and f32 mix at will.
struct BinaryArgs {
  BinaryOp op = BinaryOp::kAdd;
  KernelShape shape;
  KernelInput a;
  KernelInput b;
  KernelOutput out;
  double alpha = 1;
  /// kAccumulate: not for comparisons and bool.
  WriteMode mode = WriteMode::kOverwrite;
};

/// out (=, +=) condition ? a : b. The condition is bool; the rest as in
/// BinaryArgs, and any dtype but bool for kAccumulate.
struct WhereArgs {
  KernelShape shape;
  KernelInput condition;
  KernelInput a;
  KernelInput b;
  KernelOutput out;
  WriteMode mode = WriteMode::kOverwrite;
};

/// out = silu(gate) * up, the inner step of SwiGLU. Floating point only.
struct SiluMulArgs {
  KernelShape shape;
  KernelInput gate;
  KernelInput up;
  KernelOutput out;
};

/// Gradients of SiluMulArgs; those not wanted are not computed.
struct SiluMulBackwardArgs {
  KernelShape shape;
  KernelInput grad;
  KernelInput gate;
  KernelInput up;
  KernelOutput dgate;
  KernelOutput dup;
  bool want_dgate = true;
  bool want_dup = true;
};

/// @}
/// \name Reductions
/// @{

enum class ReduceKind : uint8_t {
  kSum,
  kMean,
  kProduct,
  kMax,     ///< NaN if any is; of no elements: -inf, or the lowest integer.
  kMin,     ///< NaN if any is; of no elements: +inf, or the highest integer.
  kArgMax,  ///< The first of equals; NaN counts as largest. Not of no elements.
  kArgMin,  ///< The first of equals; NaN counts as smallest.
  kSumOfSquares,
};

/// out (=, +=) the reduction of `in` over the dims whose bit is set in
/// `reduced`.
///
/// Dtypes: the input's (floating point or integer), or f32 or f64 for floating
/// point input; sums of integers or bool may go to i64, max and min of bool to
/// bool; kArgMax and kArgMin give i64, the row-major index within the reduced
/// dims. An f64 out accumulates in double, integers in i64, all else in float.
///
/// Sums follow a tree that depends on the sizes and strides alone: a term is
/// added at most 37 times within its run, then once for each level of pairs of
/// runs. Of n terms |error| <= gamma(39 + ceil(log2(n))) * sum |x|, and the
/// rounding to a 16-bit out once.
struct ReduceArgs {
  ReduceKind kind = ReduceKind::kSum;
  /// Sizes of the input.
  KernelShape shape;
  /// Bit d: dim d is reduced.
  uint32_t reduced = 0;
  KernelInput in;
  /// Strides by the input's dims; those of reduced dims are ignored.
  KernelOutput out;
  /// kAccumulate: sum, mean and sum of squares only.
  WriteMode mode = WriteMode::kOverwrite;
};

/// @}
/// \name Matrix products
/// @{

/// An operand of MatMulArgs: a batch of matrices.
struct MatMulInput {
  const void* data = nullptr;
  int64_t row_stride = 0;
  int64_t col_stride = 0;
  int64_t batch_strides[kMaxKernelDims] = {};  ///< 0 where broadcast.
};
struct MatMulOutput {
  void* data = nullptr;
  int64_t row_stride = 0;
  int64_t col_stride = 0;
  int64_t batch_strides[kMaxKernelDims] = {};
};

/// out = alpha * a b + beta * out, for each of a batch: a (m, k), b (k, n),
/// out (m, n). A transpose is a swap of strides. With k == 0 out = beta * out;
/// with beta == 0 the old out is not read. |error| <= gamma(k + 2) *
/// (|alpha| |a| |b| + |beta out|), and the rounding to a 16-bit out once.
struct MatMulArgs {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  /// Sizes of the batch; none for one product.
  KernelShape batch;
  MatMulInput a;
  MatMulInput b;
  MatMulOutput out;
  /// Of a and b: floating point.
  DType dtype = DType::kFloat32;
  /// `dtype`, or f32 for 16-bit a and b.
  DType out_dtype = DType::kFloat32;
  double alpha = 1;
  double beta = 0;
  /// matmul_workspace_bytes(args) bytes, aligned to 64; null if 0.
  void* workspace = nullptr;
};

/// @}
/// \name Attention
/// @{

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

/// out = softmax(scale * q k^T, masked) v for each head; query head h uses key
/// head h / (q_heads / kv_heads). Causal: query i sees keys j <= i + kv_len -
/// q_len; a query that sees no key gives zeros and a log-sum-exp of -inf.
/// Memory beside the operands is of order of tiles, never q_len x kv_len.
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
  /// log-sum-exp of the scaled, masked scores.
  void* logsumexp = nullptr;
  DType dtype = DType::kFloat32;
  double scale = 1;
  bool causal = true;
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
  const float* cos = nullptr;  ///< Contiguous [time, head_dim / 2].
  const float* sin = nullptr;
  DType dtype = DType::kFloat32;
  bool inverse = false;  ///< Rotates back: the gradient.
};

/// @}
/// \name Rows: matrices [rows, cols] whose columns are contiguous
/// @{

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

/// Gradients of RmsNormArgs. dx is overwritten; what is not wanted is not
/// computed.
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

/// The pieces for logits that hold only the classes [first, first + cols):
/// sum_exp[r] = sum of exp(logits[r, :] - row_max[r]); picked[r] =
/// logits[r, target - first] where the target is among these classes, else 0.
/// Loss = log(total sum_exp) + row_max - total picked. (row_max: reduce.)
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

/// out[r] = table[ids[r] - first], zeros where the id is outside of [first,
/// first + table_rows).
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
/// with that id; ids outside of [first, first + table_rows) are left out.
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

/// @}
/// \name Training
/// @{

/// One step of torch.optim.AdamW's single-tensor form on `count` contiguous
/// float32 elements:
///   g = grad * *grad_scale; p *= 1 - lr * weight_decay;
///   m += (1 - beta1) * (g - m); v = beta2 * v + (1 - beta2) * g * g;
///   p -= lr / bias_correction1 * m / (sqrt(v) / sqrt(bias_correction2) + eps).
struct AdamWArgs {
  int64_t count = 0;
  float* param = nullptr;
  const float* grad = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  double lr = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  double bias_correction1 = 1;  ///< 1 - beta1^step
  double bias_correction2 = 1;  ///< 1 - beta2^step
  /// One element, read when the kernel runs; null stands for 1.
  const float* grad_scale = nullptr;
};

enum class RandomKind : uint8_t {
  kUniform,  ///< a + (b - a) * u with u in [0, 1), a multiple of 2^-24.
  kNormal,   ///< a + b * z with z standard normal.
};

/// Random values by global element index: the same element of the same tensor
/// has the same bits whichever shard it is made in. An element of row-major
/// index e in the global tensor takes the Philox4x32-10 block of key `key` and
/// counter (low e, high e, low stream, high stream).
struct RandomArgs {
  RandomKind kind = RandomKind::kNormal;
  void* out = nullptr;  ///< Contiguous, of the box's sizes.
  DType dtype =
      DType::kFloat32;  ///< Floating point; made in f32, then rounded.
  uint64_t key = 0;
  uint64_t stream = 0;
  /// Sizes of the box that is filled.
  KernelShape box;
  /// Where the box starts in the global tensor.
  int64_t offsets[kMaxKernelDims] = {};
  int64_t global_sizes[kMaxKernelDims] = {};
  double a = 0;
  double b = 1;
};

/// out[i] = scale * (sources[0][i] op sources[1][i] op ...), in this order, on
/// contiguous runs. 16-bit floats accumulate in float and are rounded once.
/// ReduceOp::kAvg also divides by num_sources. Out may be one of the sources.
struct AccumulateRanksArgs {
  ReduceOp op = ReduceOp::kSum;
  /// Array of num_sources >= 1 pointers; read while the kernel runs.
  const void* const* sources = nullptr;
  int num_sources = 0;
  void* out = nullptr;
  int64_t count = 0;
  DType dtype = DType::kFloat32;      ///< Of the sources.
  DType out_dtype = DType::kFloat32;  ///< `dtype`, or f32 for 16-bit floats.
  /// Floating point only (1 for integers).
  double scale = 1;
};

/// @}

/// What a device can do.
struct KernelTable {
  void (*copy)(const CopyArgs&, KernelContext&);
  void (*fill)(const FillArgs&, KernelContext&);
  void (*arange)(const ArangeArgs&, KernelContext&);

  void (*unary)(const UnaryArgs&, KernelContext&);
  void (*binary)(const BinaryArgs&, KernelContext&);
  void (*where)(const WhereArgs&, KernelContext&);
  void (*silu_mul)(const SiluMulArgs&, KernelContext&);
  void (*silu_mul_backward)(const SiluMulBackwardArgs&, KernelContext&);

  void (*reduce)(const ReduceArgs&, KernelContext&);

  int64_t (*matmul_workspace_bytes)(const MatMulArgs&);
  void (*matmul)(const MatMulArgs&, KernelContext&);

  int64_t (*attention_workspace_bytes)(const AttentionArgs&);
  void (*attention)(const AttentionArgs&, KernelContext&);
  int64_t (*attention_backward_workspace_bytes)(const AttentionBackwardArgs&);
  void (*attention_backward)(const AttentionBackwardArgs&, KernelContext&);
  void (*rope)(const RopeArgs&, KernelContext&);

  void (*softmax)(const SoftmaxArgs&, KernelContext&);
  void (*softmax_backward)(const SoftmaxBackwardArgs&, KernelContext&);
  void (*rms_norm)(const RmsNormArgs&, KernelContext&);
  int64_t (*rms_norm_backward_workspace_bytes)(const RmsNormBackwardArgs&);
  void (*rms_norm_backward)(const RmsNormBackwardArgs&, KernelContext&);
  void (*layer_norm)(const LayerNormArgs&, KernelContext&);
  int64_t (*layer_norm_backward_workspace_bytes)(const LayerNormBackwardArgs&);
  void (*layer_norm_backward)(const LayerNormBackwardArgs&, KernelContext&);
  void (*cross_entropy)(const CrossEntropyArgs&, KernelContext&);
  void (*cross_entropy_shard)(const CrossEntropyShardArgs&, KernelContext&);
  void (*cross_entropy_backward)(const CrossEntropyBackwardArgs&,
                                 KernelContext&);
  void (*embedding)(const EmbeddingArgs&, KernelContext&);
  int64_t (*embedding_backward_workspace_bytes)(const EmbeddingBackwardArgs&);
  void (*embedding_backward)(const EmbeddingBackwardArgs&, KernelContext&);

  void (*adamw)(const AdamWArgs&, KernelContext&);
  void (*random)(const RandomArgs&, KernelContext&);
  void (*accumulate_ranks)(const AccumulateRanksArgs&, KernelContext&);
};

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_KERNELS_KERNEL_TABLE_H_
