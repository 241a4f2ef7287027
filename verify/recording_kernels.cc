// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/verify/recording_kernels.h"

#include <algorithm>
#include <initializer_list>
#include <type_traits>
#include <utility>
#include <vector>

#include "crosshatch/base/byte_hash.h"
#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/kernel_table.h"
#include "crosshatch/verify/recorder.h"

namespace crosshatch::verify {
namespace {

/// A dim of an operand: its size, and its stride in elements.
struct Dim {
  int64_t size;
  int64_t stride;
};

/// The operands of a kernel.
class Operands {
 public:
  /// \param dims a range of Dim
  template <typename Dims>
  void Extent(const void* data, DType dtype, const Dims& dims, bool writes,
              bool carries = false, double factor = 1) {
    if (data == nullptr) return;
    int64_t below = 0;
    int64_t above = 0;
    for (const Dim& dim : dims) {
      if (dim.size == 0) return;
      const int64_t extent = (dim.size - 1) * dim.stride;
      (extent < 0 ? below : above) += extent;
    }
    const auto begin = reinterpret_cast<int64_t>(data);
    const int64_t element = SizeOf(dtype);
    accesses.push_back({.begin = begin + below * element,
                        .end = begin + (above + 1) * element,
                        .writes = writes,
                        .carries = carries,
                        .factor = factor});
  }
  void Box(const void* data, DType dtype, std::initializer_list<Dim> dims,
           bool writes, bool carries = false, double factor = 1) {
    Extent(data, dtype, dims, writes, carries, factor);
  }
  void Read(const void* data, DType dtype, std::initializer_list<Dim> dims) {
    Box(data, dtype, dims, /*writes=*/false);
  }
  void Write(void* data, DType dtype, std::initializer_list<Dim> dims) {
    Box(data, dtype, dims, /*writes=*/true);
  }
  void Read(const KernelInput& in, const KernelShape& shape) {
    Extent(in.data, in.dtype, Dims(shape, in.strides), false, false, 1);
  }
  void Write(const KernelOutput& out, const KernelShape& shape) {
    Extent(out.data, out.dtype, Dims(shape, out.strides), true, false, 1);
  }
  /// Reads an input of which the output is an elementwise function, unless it
  /// is broadcast, such as a scalar factor.
  void Carry(const KernelInput& in, const KernelShape& shape,
             double factor = 1) {
    bool broadcasts = false;
    for (int d = 0; d < shape.ndim; ++d) {
      broadcasts = broadcasts || (in.strides[d] == 0 && shape.sizes[d] > 1);
    }
    Extent(in.data, in.dtype, Dims(shape, in.strides), false, !broadcasts,
           factor);
  }
  void Accumulate(WriteMode mode) {
    accumulates = accumulates || mode == WriteMode::kAccumulate;
  }

  std::vector<LoggedAccess> accesses;
  bool accumulates = false;
  bool zeros = false;
  uint64_t origin = 0;

 private:
  static std::vector<Dim> Dims(const KernelShape& shape,
                               const int64_t* strides) {
    std::vector<Dim> dims;
    for (int d = 0; d < shape.ndim; ++d) {
      dims.push_back({shape.sizes[d], strides[d]});
    }
    return dims;
  }
};

int64_t NumElements(const KernelShape& shape) {
  int64_t count = 1;
  for (int d = 0; d < shape.ndim; ++d) count *= shape.sizes[d];
  return count;
}

void AddHeads(Operands& to, const HeadsInput& in, DType dtype, int64_t batch,
              int64_t time, int64_t heads, int64_t dim) {
  to.Read(in.data, dtype,
          {{batch, in.batch_stride},
           {time, in.time_stride},
           {heads, in.head_stride},
           {dim, 1}});
}
void AddHeads(Operands& to, const HeadsOutput& out, DType dtype, int64_t batch,
              int64_t time, int64_t heads, int64_t dim) {
  to.Write(out.data, dtype,
           {{batch, out.batch_stride},
            {time, out.time_stride},
            {heads, out.head_stride},
            {dim, 1}});
}

void AddInputs(Operands& to, const AttentionArgs& a) {
  AddHeads(to, a.q, a.dtype, a.batch, a.q_len, a.q_heads, a.head_dim);
  AddHeads(to, a.k, a.dtype, a.batch, a.kv_len, a.kv_heads, a.head_dim);
  AddHeads(to, a.v, a.dtype, a.batch, a.kv_len, a.kv_heads, a.head_dim);
  to.Read(a.mask,
          {.ndim = 4, .sizes = {a.batch, a.q_heads, a.q_len, a.kv_len}});
  to.Read(a.key_ranges, kInt32,
          {{a.batch, a.key_ranges_batch_stride}, {2 * a.q_len, 1}});
  to.Read(a.slopes, kFloat32, {{a.q_heads, 1}});
}

void Add(Operands& to, const AttentionArgs& a) {
  AddInputs(to, a);
  AddHeads(to, a.out, a.dtype, a.batch, a.q_len, a.q_heads, a.head_dim);
  to.Write(a.logsumexp, StatisticsDType(a.dtype),
           {{a.batch * a.q_heads * a.q_len, 1}});
}

void Add(Operands& to, const AttentionBackwardArgs& b) {
  const AttentionArgs& a = b.forward;
  AddInputs(to, a);
  const auto like_q = [&](const auto& operand) {
    AddHeads(to, operand, a.dtype, a.batch, a.q_len, a.q_heads, a.head_dim);
  };
  const auto like_k = [&](const auto& operand) {
    AddHeads(to, operand, a.dtype, a.batch, a.kv_len, a.kv_heads, a.head_dim);
  };
  like_q(HeadsInput{a.out.data, a.out.batch_stride, a.out.time_stride,
                    a.out.head_stride});
  to.Read(a.logsumexp, StatisticsDType(a.dtype),
          {{a.batch * a.q_heads * a.q_len, 1}});
  like_q(b.grad);
  like_q(b.dq);
  like_k(b.dk);
  like_k(b.dv);
}

void Add(Operands& to, const RopeArgs& a) {
  AddHeads(to, a.x, a.dtype, a.batch, a.time, a.heads, a.head_dim);
  AddHeads(to, a.out, a.dtype, a.batch, a.time, a.heads, a.head_dim);
  for (const float* table : {a.cos, a.sin}) {
    to.Read(table, kFloat32,
            {{a.batch, a.table_batch_stride}, {a.time * a.head_dim / 2, 1}});
  }
}

KernelShape WithSize(KernelShape shape, int dim, int64_t size) {
  shape.sizes[dim] = size;
  return shape;
}

void Add(Operands& to, const GatherArgs& a) {
  to.Read(a.index, a.shape);
  to.Read(a.src, WithSize(a.shape, a.at.dim, a.at.count));
  to.Write(a.out, a.shape);
}
void Add(Operands& to, const ScatterArgs& a) {
  to.Read(a.index, a.shape);
  to.Read(a.src, a.shape);
  to.Write(a.out, WithSize(a.shape, a.at.dim, a.at.count));
  to.Accumulate(WriteMode::kAccumulate);  // The rest keeps its content.
}
void Add(Operands& to, const DropoutArgs& a) {
  to.Read(a.x, a.shape);
  to.Write(a.out, a.x.dtype, {{NumElements(a.shape), 1}});
}
void Add(Operands& to, const CheckIndexRangeArgs& a) {
  to.Read(a.indices, a.dtype, {{a.count, 1}});
}

template <typename Operand>
void AddMatrix(Operands& to, const Operand& operand, DType dtype,
               const KernelShape& batch, int64_t rows, int64_t cols) {
  std::vector<Dim> dims = {{rows, operand.row_stride},
                           {cols, operand.col_stride}};
  for (int d = 0; d < batch.ndim; ++d) {
    dims.push_back({batch.sizes[d], operand.batch_strides[d]});
  }
  to.Extent(operand.data, dtype, dims, std::is_same_v<Operand, MatMulOutput>);
}

void Add(Operands& to, const MatMulArgs& a) {
  AddMatrix(to, a.a, a.dtype, a.batch, a.m, a.k);
  AddMatrix(to, a.b, a.dtype, a.batch, a.k, a.n);
  to.Read(a.bias, a.out_dtype, {{a.n, 1}});
  AddMatrix(to, a.out, a.out_dtype, a.batch, a.m, a.n);
  to.accumulates = a.beta != 0;
}

void Add(Operands& to, const ScaledMatMulArgs& a) {
  AddMatrix(to, a.a, a.a_dtype, {}, a.m, a.k);
  AddMatrix(to, a.b, a.b_dtype, {}, a.k, a.n);
  to.Read(a.scale_a, kFloat32, {{a.scales_by_row ? a.m : 1, 1}});
  to.Read(a.scale_b, kFloat32, {{a.scales_by_row ? a.n : 1, 1}});
  AddMatrix(to, a.out, a.out_dtype, {}, a.m, a.n);
}
void Add(Operands& to, const Float8ScaleArgs& a) {
  to.Read(a.amax, kFloat32, {{a.count, 1}});
  to.Write(a.scale, kFloat32, {{a.count, 1}});
  to.Write(a.inverse, kFloat32, {{a.count, 1}});
}
void Add(Operands& to, const Float8ConvertArgs& a) {
  to.Read(a.in, a.shape);
  to.Read(a.scale, a.shape);
  to.Write(a.out, a.shape);
}

void Add(Operands& to, const CopyArgs& a) {
  to.Carry(a.src, a.shape);
  to.Write(a.out, a.shape);
  to.Accumulate(a.mode);
}
void Add(Operands& to, const FillArgs& a) {
  to.Write(a.out, a.shape);
  to.zeros = a.value == 0;
}
void Add(Operands& to, const ArangeArgs& a) {
  to.Write(a.out, a.dtype, {{a.count, 1}});
}
void Add(Operands& to, const TransferArgs& a) {
  to.Box(a.from, kBool, {{a.bytes, 1}}, /*writes=*/false, /*carries=*/true);
  to.Write(a.to, kBool, {{a.bytes, 1}});
}
// Elementwise functions keep what a gradient was summed over.
void Add(Operands& to, const UnaryArgs& a) {
  to.Carry(a.a, a.shape, a.op == UnaryOp::kMulScalar ? a.scalar : 1);
  to.Write(a.out, a.shape);
  to.Accumulate(a.mode);
}
void Add(Operands& to, const BinaryArgs& a) {
  const bool sums = a.op == BinaryOp::kAdd || a.op == BinaryOp::kSub;
  to.Carry(a.a, a.shape);
  to.Carry(a.b, a.shape, sums ? a.alpha : 1);
  to.Write(a.out, a.shape);
  to.Accumulate(a.mode);
}
void Add(Operands& to, const WhereArgs& a) {
  to.Read(a.condition, a.shape);
  to.Carry(a.a, a.shape);
  to.Carry(a.b, a.shape);
  to.Write(a.out, a.shape);
  to.Accumulate(a.mode);
}
void Add(Operands& to, const SiluMulArgs& a) {
  to.Read(a.gate, a.shape);
  to.Read(a.up, a.shape);
  to.Write(a.out, a.shape);
}
void Add(Operands& to, const SiluMulBackwardArgs& a) {
  to.Read(a.grad, a.shape);
  to.Read(a.gate, a.shape);
  to.Read(a.up, a.shape);
  if (a.want_dgate) to.Write(a.dgate, a.shape);
  if (a.want_dup) to.Write(a.dup, a.shape);
}
void Add(Operands& to, const ReduceArgs& a) {
  to.Read(a.in, a.shape);
  KernelShape kept = a.shape;
  for (int d = 0; d < kept.ndim; ++d) {
    if ((a.reduced >> d & 1) != 0) kept.sizes[d] = 1;
  }
  to.Write(a.out, kept);
  to.Accumulate(a.mode);
}

void AddRows(Operands& to, const RowsInput& in, DType dtype, int64_t rows,
             int64_t cols) {
  to.Read(in.data, dtype, {{rows, in.row_stride}, {cols, 1}});
}
void AddRows(Operands& to, const RowsOutput& out, DType dtype, int64_t rows,
             int64_t cols) {
  to.Write(out.data, dtype, {{rows, out.row_stride}, {cols, 1}});
}

void Add(Operands& to, const SoftmaxArgs& a) {
  AddRows(to, a.x, a.dtype, a.rows, a.cols);
  AddRows(to, a.out, a.dtype, a.rows, a.cols);
}
void Add(Operands& to, const SoftmaxBackwardArgs& a) {
  AddRows(to, a.y, a.dtype, a.rows, a.cols);
  AddRows(to, a.grad, a.dtype, a.rows, a.cols);
  AddRows(to, a.dx, a.dtype, a.rows, a.cols);
}
void Add(Operands& to, const RmsNormArgs& a) {
  AddRows(to, a.x, a.dtype, a.rows, a.cols);
  to.Read(a.weight, a.dtype, {{a.cols, 1}});
  AddRows(to, a.out, a.dtype, a.rows, a.cols);
  to.Write(a.rstd, StatisticsDType(a.dtype), {{a.rows, 1}});
}
void Add(Operands& to, const RmsNormBackwardArgs& a) {
  AddRows(to, a.grad, a.dtype, a.rows, a.cols);
  AddRows(to, a.x, a.dtype, a.rows, a.cols);
  to.Read(a.weight, a.dtype, {{a.cols, 1}});
  to.Read(a.rstd, StatisticsDType(a.dtype), {{a.rows, 1}});
  if (a.want_dx) AddRows(to, a.dx, a.dtype, a.rows, a.cols);
  if (a.want_dweight) to.Write(a.dweight, a.dweight_dtype, {{a.cols, 1}});
  to.Accumulate(a.dweight_mode);
}
void Add(Operands& to, const LayerNormArgs& a) {
  AddRows(to, a.x, a.dtype, a.rows, a.cols);
  to.Read(a.weight, a.dtype, {{a.cols, 1}});
  to.Read(a.bias, a.dtype, {{a.cols, 1}});
  AddRows(to, a.out, a.dtype, a.rows, a.cols);
  to.Write(a.mean, StatisticsDType(a.dtype), {{a.rows, 1}});
  to.Write(a.rstd, StatisticsDType(a.dtype), {{a.rows, 1}});
}
void Add(Operands& to, const LayerNormBackwardArgs& a) {
  AddRows(to, a.grad, a.dtype, a.rows, a.cols);
  AddRows(to, a.x, a.dtype, a.rows, a.cols);
  to.Read(a.weight, a.dtype, {{a.cols, 1}});
  to.Read(a.mean, StatisticsDType(a.dtype), {{a.rows, 1}});
  to.Read(a.rstd, StatisticsDType(a.dtype), {{a.rows, 1}});
  if (a.want_dx) AddRows(to, a.dx, a.dtype, a.rows, a.cols);
  if (a.want_dweight) to.Write(a.dweight, a.dweight_dtype, {{a.cols, 1}});
  if (a.want_dbias) to.Write(a.dbias, a.dweight_dtype, {{a.cols, 1}});
  to.Accumulate(a.dweight_mode);
  to.Accumulate(a.dbias_mode);
}
void Add(Operands& to, const CrossEntropyArgs& a) {
  AddRows(to, a.logits, a.dtype, a.rows, a.cols);
  to.Read(a.targets.data, a.targets.dtype, {{a.rows, 1}});
  to.Write(a.loss, StatisticsDType(a.dtype), {{a.rows, 1}});
  to.Write(a.logsumexp, StatisticsDType(a.dtype), {{a.rows, 1}});
}
void Add(Operands& to, const CrossEntropyShardArgs& a) {
  AddRows(to, a.logits, a.dtype, a.rows, a.cols);
  to.Read(a.targets.data, a.targets.dtype, {{a.rows, 1}});
  to.Read(a.row_max, StatisticsDType(a.dtype), {{a.rows, 1}});
  to.Write(a.sum_exp, StatisticsDType(a.dtype), {{a.rows, 1}});
  to.Write(a.picked, StatisticsDType(a.dtype), {{a.rows, 1}});
}
void Add(Operands& to, const CrossEntropyBackwardArgs& a) {
  AddRows(to, a.logits, a.dtype, a.rows, a.cols);
  to.Read(a.targets.data, a.targets.dtype, {{a.rows, 1}});
  to.Read(a.logsumexp, StatisticsDType(a.dtype), {{a.rows, 1}});
  to.Read(a.grad, StatisticsDType(a.dtype), {{a.rows, a.grad_stride}});
  AddRows(to, a.dlogits, a.dtype, a.rows, a.cols);
}
void Add(Operands& to, const EmbeddingArgs& a) {
  to.Read(a.ids, a.ids_dtype, {{a.rows, 1}});
  AddRows(to, a.table, a.dtype, a.table_rows, a.cols);
  AddRows(to, a.out, a.dtype, a.rows, a.cols);
}
void Add(Operands& to, const EmbeddingBackwardArgs& a) {
  to.Read(a.ids, a.ids_dtype, {{a.rows, 1}});
  AddRows(to, a.grad, a.dtype, a.rows, a.cols);
  AddRows(to, a.dtable, a.dtable_dtype, a.table_rows, a.cols);
  to.Accumulate(a.mode);
}
void Add(Operands& to, const CumSumArgs& a) {
  to.Read(a.in, a.shape);
  to.Write(a.out, a.shape);
}
void Add(Operands& to, const SortArgs& a) {
  to.Read(a.in, a.shape);
  to.Read(a.labels, a.shape);
  const KernelShape kept = WithSize(a.shape, a.dim, a.count);
  to.Write(a.values, kept);
  to.Write(a.indices, kept);
}
void Add(Operands& to, const AdamWArgs& a) {
  to.Box(a.grad, kFloat32, {{a.count, 1}}, /*writes=*/false, /*carries=*/true);
  to.Read(a.grad_scale, kFloat32, {{1, 1}});
  for (float* const state : {a.param, a.exp_avg, a.exp_avg_sq}) {
    to.Read(state, kFloat32, {{a.count, 1}});
    to.Write(state, kFloat32, {{a.count, 1}});
  }
}
void Add(Operands& to, const RandomArgs& a) {
  to.Write(a.out, a.dtype, {{NumElements(a.box), 1}});
  uint64_t hash = a.key;
  for (int d = 0; d < a.box.ndim; ++d) {
    const int64_t interval[] = {a.offsets[d], a.box.sizes[d]};
    hash = HashBytes(hash, interval, sizeof interval);
  }
  to.origin = std::max<uint64_t>(hash, 1);
}
void Add(Operands& to, const AccumulateRanksArgs& a) {
  // Only engines launch it, within a collective that is logged as a whole.
  to.Write(a.out, a.out_dtype, {{a.runs, a.out_stride}, {a.count, 1}});
}

void AddWindows(Operands& to, const WindowsArgs& a, bool reads_images) {
  const int64_t images = a.images * a.channels * a.rows.size * a.cols.size;
  const int64_t windows = a.images * a.channels * a.rows.windows *
                          a.cols.windows * a.rows.kernel * a.cols.kernel;
  to.Read(a.in, a.dtype, {{reads_images ? images : windows, 1}});
  to.Write(a.out, a.dtype, {{reads_images ? windows : images, 1}});
}

void Record(KernelContext& context, const char* name,
            const Operands& operands) {
  auto& on = static_cast<RecordingContext&>(context);
  LoggedEvent& event = on.recorder->Kernel(on.stream, name, operands.accesses);
  event.accumulates = operands.accumulates;
  event.zeros = operands.zeros;
  event.origin = operands.origin;
}

template <typename Args>
void RecordArgs(KernelContext& context, const char* name, const Args& args) {
  Operands operands;
  if constexpr (std::is_same_v<Args, WindowsArgs>) {
    AddWindows(operands, args, /*reads_images=*/name[0] == 'u');
  } else {
    Add(operands, args);
  }
  Record(context, name, operands);
}

// Returns the table whose kernels log; workspaces are those of `table`.
std::unique_ptr<const KernelTable> RecordingTable(const KernelTable& real) {
  auto table = std::make_unique<KernelTable>(real);
#define CH_RECORD(d, member, Name, Args)                         \
  table->member = [](const Args& args, KernelContext& context) { \
    RecordArgs(context, #member, args);                          \
  };
  CH_ALL_KERNELS(CH_RECORD, CH_RECORD, )
#undef CH_RECORD
  table->record_own = [](KernelContext& context) {
    const auto& on = static_cast<const RecordingContext&>(context);
    on.recorder->UnknownKernel(on.stream);
  };
  return table;
}

}  // namespace

RecordingBackend::RecordingBackend(const DeviceBackend& real)
    : RecordingBackend(real, RecordingTable(real.kernels())) {}

RecordingBackend::RecordingBackend(const DeviceBackend& real,
                                   std::unique_ptr<const KernelTable> table)
    : DeviceBackend(real.device(), *table, /*host_addressable=*/false),
      table_(std::move(table)) {}

std::unique_ptr<Stream> RecordingBackend::MakeStream(const std::string&,
                                                     StreamRole,
                                                     const RankParts&) const {
  CH_CHECK(false) << "a dry run makes its own streams";
  return nullptr;
}
std::unique_ptr<Allocator> RecordingBackend::MakeAllocator(bool) const {
  CH_CHECK(false) << "a dry run makes its own allocators";
  return nullptr;
}
std::unique_ptr<Allocator> RecordingBackend::MakeHostAllocator(bool) const {
  CH_CHECK(false) << "a dry run makes its own allocators";
  return nullptr;
}

}  // namespace crosshatch::verify
