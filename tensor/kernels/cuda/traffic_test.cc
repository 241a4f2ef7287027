// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/emulation/traffic.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <utility>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using emulation::Traffic;
using emulation::TrafficCount;
using kernel_test::Kernels;

// Page-aligned device memory, filled with zeros.
class Buffer {
 public:
  Buffer(DType dtype, int64_t elements)
      : data_(static_cast<size_t>(elements * SizeOf(dtype))) {}
  void* get() const { return data_.data(); }
  int64_t bytes() const { return static_cast<int64_t>(data_.size()); }

 private:
  mutable kernel_test::Bytes data_;
};

std::string ReadPage() {
  std::ifstream file("docs/cuda_kernels.md");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Formats a number as "1,024".
std::string Grouped(int64_t number) {
  std::string digits = std::to_string(number);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<size_t>(at), ",");
  }
  return digits;
}

// The dtype in the table's rows.
std::string dtype_of_test;

// The minimum work of a kernel: bytes if each operand moves once, and
// operations. A function such as exp is one operation.
struct Work {
  int64_t bytes = 0;
  int64_t operations = 0;
};

// Runs a kernel that must do `work` and prints its traffic, which the page
// lists. At least nine tenths of the traffic must be `work`.
void ExpectMovesLittle(const char* name, Work work,
                       const std::function<void(KernelContext&)>& kernel) {
  const int64_t least = work.bytes;
  Traffic traffic;
  {
    const TrafficCount count;
    kernel_test::Run(kernel);
    traffic = count.total();
  }
  const double part =
      static_cast<double>(least) / static_cast<double>(traffic.bytes());
  std::printf("%-34s %9ld of %9ld bytes: %.3f, %5.1f bytes a load\n", name,
              static_cast<long>(least), static_cast<long>(traffic.bytes()),
              part,
              static_cast<double>(traffic.load_sectors * 32) /
                  static_cast<double>(
                      std::max<int64_t>(traffic.load_requests * 32, 1)));
  char ratio[16];
  std::snprintf(ratio, sizeof(ratio), "%.3f", part);
  const std::string line = std::string("| ") + name + " | " + dtype_of_test +
                           " | " + Grouped(work.operations) + " | " +
                           Grouped(least) + " | " + Grouped(traffic.bytes()) +
                           " | " + ratio + " |";
  static const auto* const page = new std::string(ReadPage());
  EXPECT_NE(page->find(line + "\n"), std::string::npos)
      << "docs/cuda_kernels.md lacks the line\n"
      << line;
  EXPECT_GE(part, 0.9) << name;
  EXPECT_LE(part, 1.0) << name << ": what it must move is less";
}

KernelInput In(const Buffer& buffer, DType dtype, int64_t inner) {
  return {buffer.get(), dtype, {inner, 1}};
}
KernelOutput Out(const Buffer& buffer, DType dtype, int64_t inner) {
  return {buffer.get(), dtype, {inner, 1}};
}

constexpr int64_t kRows = 64;
constexpr int64_t kCols = 1024;
constexpr int64_t kElements = kRows * kCols;
const KernelShape kShape = {2, {kRows, kCols}};

class TrafficTest : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override { dtype_of_test = Name(dtype_); }

  const DType dtype_ = GetParam();
  const Buffer a_{dtype_, kElements}, b_{dtype_, kElements},
      c_{dtype_, kElements}, d_{dtype_, kElements};
  RowsInput RowsOf(const Buffer& x) const { return {x.get(), kCols}; }
  RowsOutput RowsTo(const Buffer& x) const { return {x.get(), kCols}; }
};

TEST_P(TrafficTest, Elementwise) {
  ExpectMovesLittle("copy", {2 * a_.bytes(), 0}, [&](KernelContext& context) {
    Kernels().copy({kShape, In(a_, dtype_, kCols), Out(b_, dtype_, kCols)},
                   context);
  });
  ExpectMovesLittle(
      "copy, transposed", {2 * a_.bytes(), 0}, [&](KernelContext& context) {
        CopyArgs args = {
            kShape, {a_.get(), dtype_, {1, kRows}}, Out(b_, dtype_, kCols)};
        Kernels().copy(args, context);
      });
  ExpectMovesLittle("silu", {2 * a_.bytes(), 4 * kElements},
                    [&](KernelContext& context) {
                      UnaryArgs args;
                      args.op = UnaryOp::kSilu;
                      args.shape = kShape;
                      args.a = In(a_, dtype_, kCols);
                      args.out = Out(b_, dtype_, kCols);
                      Kernels().unary(args, context);
                    });
  ExpectMovesLittle("add", {3 * a_.bytes(), kElements},
                    [&](KernelContext& context) {
                      BinaryArgs args;
                      args.shape = kShape;
                      args.a = In(a_, dtype_, kCols);
                      args.b = In(b_, dtype_, kCols);
                      args.out = Out(c_, dtype_, kCols);
                      Kernels().binary(args, context);
                    });
  ExpectMovesLittle(
      "silu_mul", {3 * a_.bytes(), 5 * kElements}, [&](KernelContext& context) {
        Kernels().silu_mul({kShape, In(a_, dtype_, kCols),
                            In(b_, dtype_, kCols), Out(c_, dtype_, kCols)},
                           context);
      });
  const Buffer e(dtype_, kElements);
  ExpectMovesLittle("silu_mul_backward", {5 * a_.bytes(), 10 * kElements},
                    [&](KernelContext& context) {
                      Kernels().silu_mul_backward(
                          {kShape, In(a_, dtype_, kCols), In(b_, dtype_, kCols),
                           In(c_, dtype_, kCols), Out(d_, dtype_, kCols),
                           Out(e, dtype_, kCols)},
                          context);
                    });
  ExpectMovesLittle("fill", {a_.bytes(), 0}, [&](KernelContext& context) {
    Kernels().fill({kShape, Out(a_, dtype_, kCols), 1}, context);
  });
  DropoutArgs dropout;
  dropout.shape = kShape;
  dropout.x = In(a_, dtype_, kCols);
  dropout.out = b_.get();
  dropout.p = 0.5;
  dropout.global_sizes[0] = kRows;
  dropout.global_sizes[1] = kCols;
  ExpectMovesLittle(
      "dropout", {2 * a_.bytes(), kElements},
      [&](KernelContext& context) { Kernels().dropout(dropout, context); });
}

TEST_P(TrafficTest, Rows) {
  const DType statistics = StatisticsDType(dtype_);
  const Buffer of_rows(statistics, kRows), more_of_rows(statistics, kRows),
      still_more(statistics, kRows);
  const int64_t small = of_rows.bytes();
  ExpectMovesLittle(
      "softmax", {2 * a_.bytes(), 5 * kElements}, [&](KernelContext& context) {
        Kernels().softmax({kRows, kCols, RowsOf(a_), RowsTo(b_), dtype_},
                          context);
      });
  ExpectMovesLittle(
      "softmax_backward", {3 * a_.bytes(), 4 * kElements},
      [&](KernelContext& context) {
        Kernels().softmax_backward(
            {kRows, kCols, RowsOf(a_), RowsOf(b_), RowsTo(c_), dtype_},
            context);
      });
  const Buffer targets(DType::kInt64, kRows);
  const TargetsInput classes = {targets.get(), DType::kInt64, -100};
  ExpectMovesLittle("cross_entropy_backward",
                    {2 * a_.bytes() + small, 4 * kElements},
                    [&](KernelContext& context) {
                      Kernels().cross_entropy_backward(
                          {kRows, kCols, 0, RowsOf(a_), classes, of_rows.get(),
                           more_of_rows.get(), 0, RowsTo(b_), dtype_},
                          context);
                    });
  ExpectMovesLittle("cross_entropy_shard",
                    {a_.bytes() + 3 * small, 3 * kElements},
                    [&](KernelContext& context) {
                      Kernels().cross_entropy_shard(
                          {kRows, kCols, 0, RowsOf(a_), classes, of_rows.get(),
                           more_of_rows.get(), still_more.get(), dtype_},
                          context);
                    });
  const Buffer ids(DType::kInt64, kRows);
  ExpectMovesLittle(
      "embedding", {2 * a_.bytes(), 0}, [&](KernelContext& context) {
        Kernels().embedding({kRows, kCols, 0, kRows, ids.get(), DType::kInt64,
                             RowsOf(a_), RowsTo(b_), dtype_},
                            context);
      });
}

// Few tokens of a large vocabulary, whose rows exceed the registers.
TEST_P(TrafficTest, Classes) {
  const DType statistics = StatisticsDType(dtype_);
  for (const auto& [name, cols] :
       {std::pair<const char*, int64_t>{"cross_entropy, 1,024 classes", 1024},
        {"cross_entropy, 32,000 classes", 32000},
        {"cross_entropy, 128,256 classes", 128256}}) {
    const int64_t rows = std::max<int64_t>(kElements / cols, 2);
    const Buffer logits(dtype_, rows * cols), loss(statistics, rows),
        logsumexp(statistics, rows), targets(DType::kInt64, rows);
    ExpectMovesLittle(
        name, {logits.bytes() + 2 * loss.bytes(), 3 * rows * cols},
        [&, cols = cols](KernelContext& context) {
          Kernels().cross_entropy({rows,
                                   cols,
                                   {logits.get(), cols},
                                   {targets.get(), DType::kInt64, -100},
                                   loss.get(),
                                   logsumexp.get(),
                                   dtype_},
                                  context);
        });
  }
}

// Each piece of rows reads the weight and writes its part of the weight's
// gradient.
TEST_P(TrafficTest, Norms) {
  constexpr int64_t kNormRows = 8192;
  constexpr int64_t kNormCols = 256;
  constexpr int64_t kCount = kNormRows * kNormCols;
  const DType statistics = StatisticsDType(dtype_);
  const Buffer x(dtype_, kCount), y(dtype_, kCount), dx(dtype_, kCount),
      weight(dtype_, kNormCols), bias(dtype_, kNormCols),
      mean(statistics, kNormRows), rstd(statistics, kNormRows);
  const RowsInput in = {x.get(), kNormCols}, grad = {y.get(), kNormCols};
  const RowsOutput out = {y.get(), kNormCols}, to = {dx.get(), kNormCols};
  const int64_t two = 2 * x.bytes();
  const int64_t three = 3 * x.bytes();
  ExpectMovesLittle("rms_norm", {two + rstd.bytes(), 4 * kCount},
                    [&](KernelContext& context) {
                      Kernels().rms_norm(
                          {kNormRows, kNormCols, in, weight.get(), out,
                           rstd.get(), dtype_, 1e-5},
                          context);
                    });
  ExpectMovesLittle("layer_norm", {two + 2 * rstd.bytes(), 7 * kCount},
                    [&](KernelContext& context) {
                      Kernels().layer_norm(
                          {kNormRows, kNormCols, in, weight.get(), bias.get(),
                           out, mean.get(), rstd.get(), dtype_, 1e-5},
                          context);
                    });
  RmsNormBackwardArgs rms;
  rms.rows = kNormRows;
  rms.cols = kNormCols;
  rms.grad = grad;
  rms.x = in;
  rms.weight = weight.get();
  rms.rstd = rstd.get();
  rms.dx = to;
  const Buffer dweight(kFloat32, kNormCols), dbias(kFloat32, kNormCols);
  rms.dweight = dweight.get();
  rms.dtype = dtype_;
  const Buffer rms_parts(DType::kBool,
                         Kernels().rms_norm_backward_workspace_bytes(rms));
  rms.workspace = rms_parts.get();
  ExpectMovesLittle("rms_norm_backward", {three + rstd.bytes(), 11 * kCount},
                    [&](KernelContext& context) {
                      Kernels().rms_norm_backward(rms, context);
                    });
  LayerNormBackwardArgs layer;
  layer.rows = kNormRows;
  layer.cols = kNormCols;
  layer.grad = grad;
  layer.x = in;
  layer.weight = weight.get();
  layer.mean = mean.get();
  layer.rstd = rstd.get();
  layer.dx = to;
  layer.dweight = dweight.get();
  layer.dbias = dbias.get();
  layer.dtype = dtype_;
  const Buffer parts(DType::kBool,
                     Kernels().layer_norm_backward_workspace_bytes(layer));
  layer.workspace = parts.get();
  ExpectMovesLittle("layer_norm_backward",
                    {three + 2 * rstd.bytes(), 14 * kCount},
                    [&](KernelContext& context) {
                      Kernels().layer_norm_backward(layer, context);
                    });
}

TEST_P(TrafficTest, Rope) {
  for (const auto& [name, heads] :
       {std::pair<const char*, int64_t>{"rope, 32 heads of 128", 32},
        {"rope, 8 heads of 128", 8}}) {
    constexpr int64_t kTime = 64;
    constexpr int64_t kDim = 128;
    const int64_t count = kTime * heads * kDim;
    const Buffer x(dtype_, count), out(dtype_, count),
        cos(kFloat32, kTime * kDim / 2), sin(kFloat32, kTime * kDim / 2);
    RopeArgs args;
    args.batch = 1;
    args.time = kTime;
    args.heads = heads;
    args.head_dim = kDim;
    args.x = {x.get(), count, heads * kDim, kDim};
    args.out = {out.get(), count, heads * kDim, kDim};
    args.cos = static_cast<const float*>(cos.get());
    args.sin = static_cast<const float*>(sin.get());
    args.dtype = dtype_;
    ExpectMovesLittle(
        name, {2 * x.bytes() + 2 * cos.bytes(), 3 * count},
        [&](KernelContext& context) { Kernels().rope(args, context); });
  }
}

TEST_P(TrafficTest, MoreOfElements) {
  ExpectMovesLittle(
      "copy, added", {3 * a_.bytes(), kElements}, [&](KernelContext& context) {
        Kernels().copy({kShape, In(a_, dtype_, kCols), Out(b_, dtype_, kCols),
                        WriteMode::kAccumulate},
                       context);
      });
  const Buffer condition(DType::kBool, kElements);
  WhereArgs where;
  where.shape = kShape;
  where.condition = In(condition, DType::kBool, kCols);
  where.a = In(a_, dtype_, kCols);
  where.b = In(b_, dtype_, kCols);
  where.out = Out(c_, dtype_, kCols);
  ExpectMovesLittle(
      "where", {3 * a_.bytes() + condition.bytes(), 0},
      [&](KernelContext& context) { Kernels().where(where, context); });
  ExpectMovesLittle("arange", {a_.bytes(), 2 * kElements},
                    [&](KernelContext& context) {
                      Kernels().arange({a_.get(), dtype_, kElements}, context);
                    });
  RandomArgs random;
  random.out = a_.get();
  random.dtype = dtype_;
  random.box = kShape;
  random.global_sizes[0] = kRows;
  random.global_sizes[1] = kCols;
  ExpectMovesLittle(
      "random", {a_.bytes(), 30 * kElements},
      [&](KernelContext& context) { Kernels().random(random, context); });
  CumSumArgs cumsum;
  cumsum.shape = kShape;
  cumsum.dim = 1;
  cumsum.in = In(a_, dtype_, kCols);
  cumsum.out = Out(b_, dtype_, kCols);
  ExpectMovesLittle(
      "cumsum, inner dim", {2 * a_.bytes(), kElements},
      [&](KernelContext& context) { Kernels().cumsum(cumsum, context); });
  cumsum.dim = 0;
  ExpectMovesLittle(
      "cumsum, outer dim", {2 * a_.bytes(), kElements},
      [&](KernelContext& context) { Kernels().cumsum(cumsum, context); });
}

// The index selects along the outer dim.
TEST_P(TrafficTest, Indexed) {
  const Buffer index(DType::kInt32, kElements);
  const IndexedDim at = {"rows", 0, 0, kRows, kRows};
  GatherArgs gather;
  gather.shape = kShape;
  gather.at = at;
  gather.index = In(index, DType::kInt32, kCols);
  gather.src = In(a_, dtype_, kCols);
  gather.out = Out(b_, dtype_, kCols);
  ExpectMovesLittle(
      "gather", {2 * a_.bytes() + index.bytes(), 0},
      [&](KernelContext& context) { Kernels().gather(gather, context); });
  ScatterArgs scatter;
  scatter.shape = kShape;
  scatter.at = at;
  scatter.index = In(index, DType::kInt32, kCols);
  scatter.src = In(a_, dtype_, kCols);
  scatter.out = Out(b_, dtype_, kCols);
  ExpectMovesLittle(
      "scatter", {2 * a_.bytes() + index.bytes(), 0},
      [&](KernelContext& context) { Kernels().scatter(scatter, context); });
}

// Windows without overlap, as for image patches.
TEST_P(TrafficTest, Windows) {
  WindowsArgs args;
  args.images = 1;
  args.channels = 4;
  args.rows = {.size = 128, .windows = 8, .kernel = 16, .stride = 16};
  args.cols = args.rows;
  args.in = a_.get();
  args.out = b_.get();
  args.dtype = dtype_;
  ExpectMovesLittle("unfold", {2 * a_.bytes(), 0}, [&](KernelContext& context) {
    Kernels().unfold(args, context);
  });
  ExpectMovesLittle(
      "fold", {2 * a_.bytes(), kElements},
      [&](KernelContext& context) { Kernels().fold(args, context); });
}

// Each id occurs once: its gradient row is read and its table row written.
TEST_P(TrafficTest, EmbeddingBackward) {
  const Buffer ids(DType::kInt64, kRows);
  auto* const values = static_cast<int64_t*>(ids.get());
  for (int64_t i = 0; i < kRows; ++i) values[i] = kRows - 1 - i;
  EmbeddingBackwardArgs args;
  args.rows = kRows;
  args.cols = kCols;
  args.table_rows = kRows;
  args.ids = ids.get();
  args.grad = RowsOf(a_);
  args.dtable = RowsTo(b_);
  args.dtype = dtype_;
  args.dtable_dtype = dtype_;
  args.mode = WriteMode::kAccumulate;
  const Buffer workspace(DType::kBool,
                         Kernels().embedding_backward_workspace_bytes(args));
  args.workspace = workspace.get();
  ExpectMovesLittle("embedding_backward, added", {3 * a_.bytes(), kElements},
                    [&](KernelContext& context) {
                      Kernels().embedding_backward(args, context);
                    });
}

TEST_P(TrafficTest, Reductions) {
  const Buffer sums(dtype_, kCols);
  const auto reduce = [&](const char* name, uint32_t reduced, int64_t outputs) {
    ReduceArgs args;
    args.kind = ReduceKind::kSum;
    args.shape = kShape;
    args.reduced = reduced;
    args.in = In(a_, dtype_, kCols);
    args.out = {sums.get(), dtype_, {1, 1}};
    ExpectMovesLittle(
        name, {a_.bytes() + outputs * SizeOf(dtype_), kElements},
        [&](KernelContext& context) { Kernels().reduce(args, context); });
  };
  reduce("reduce, inner dim", 2, kRows);
  reduce("reduce, outer dim", 1, kCols);
  reduce("reduce, all", 3, 1);
}

INSTANTIATE_TEST_SUITE_P(DTypes, TrafficTest,
                         ::testing::Values(kFloat32, kBFloat16),
                         [](const auto& test) {
                           return std::string(Name(test.param));
                         });

TEST(TrafficOfTrainingTest, AdamW) {
  dtype_of_test = Name(kFloat32);
  const Buffer p(kFloat32, kElements), g(kFloat32, kElements),
      m(kFloat32, kElements), v(kFloat32, kElements);
  AdamWArgs args;
  args.count = kElements;
  args.param = static_cast<float*>(p.get());
  args.grad = static_cast<const float*>(g.get());
  args.exp_avg = static_cast<float*>(m.get());
  args.exp_avg_sq = static_cast<float*>(v.get());
  ExpectMovesLittle(
      "adamw", {7 * p.bytes(), 16 * kElements},
      [&](KernelContext& context) { Kernels().adamw(args, context); });
}

// One block takes all queries, so keys and values are read once.
TEST(TrafficOfTrainingTest, Attention) {
  dtype_of_test = Name(kBFloat16);
  constexpr int64_t kQueries = 64;
  constexpr int64_t kKeys = 1024;
  constexpr int64_t kHeads = 2;
  constexpr int64_t kDim = 128;
  const Buffer q(kBFloat16, kQueries * kHeads * kDim),
      out(kBFloat16, kQueries * kHeads * kDim),
      k(kBFloat16, kKeys * kHeads * kDim), v(kBFloat16, kKeys * kHeads * kDim),
      logsumexp(kFloat32, kQueries * kHeads);
  AttentionArgs args;
  args.batch = 1;
  args.q_len = kQueries;
  args.kv_len = kKeys;
  args.q_heads = args.kv_heads = kHeads;
  args.head_dim = kDim;
  args.q = {q.get(), 0, kHeads * kDim, kDim};
  args.k = {k.get(), 0, kHeads * kDim, kDim};
  args.v = {v.get(), 0, kHeads * kDim, kDim};
  args.out = {out.get(), 0, kHeads * kDim, kDim};
  args.logsumexp = logsumexp.get();
  args.dtype = kBFloat16;
  // Two products; each term is two operations.
  ExpectMovesLittle(
      "attention, 64 queries",
      {2 * q.bytes() + 2 * k.bytes() + logsumexp.bytes(),
       4 * kQueries * kKeys * kHeads * kDim},
      [&](KernelContext& context) { Kernels().attention(args, context); });
}

TEST(TrafficOfTrainingTest, AccumulateRanks) {
  dtype_of_test = Name(kBFloat16);
  const Buffer a(kBFloat16, kElements), b(kBFloat16, kElements),
      c(kBFloat16, kElements), out(kBFloat16, kElements);
  const void* sources[] = {a.get(), b.get(), c.get()};
  const AccumulateRanksArgs args = {
      ReduceOp::kSum, sources, 3, out.get(), kElements, kBFloat16, kBFloat16};
  ExpectMovesLittle("accumulate_ranks", {4 * a.bytes(), 2 * kElements},
                    [&](KernelContext& context) {
                      Kernels().accumulate_ranks(args, context);
                    });
}

}  // namespace
}  // namespace crosshatch
