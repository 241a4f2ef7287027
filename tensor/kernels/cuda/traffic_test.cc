// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/emulation/traffic.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using emulation::Traffic;
using emulation::TrafficCount;
using kernel_test::Kernels;

// Memory as an allocator gives it: aligned to 256 bytes, and zeros.
class Buffer {
 public:
  Buffer(DType dtype, int64_t elements)
      : bytes_(elements * SizeOf(dtype)),
        data_(std::aligned_alloc(256, static_cast<size_t>(Rounded())),
              std::free) {
    auto* const bytes = static_cast<std::byte*>(data_.get());
    std::fill(bytes, bytes + Rounded(), std::byte{0});
  }
  void* get() const { return data_.get(); }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t Rounded() const { return (bytes_ + 255) / 256 * 256; }
  int64_t bytes_;
  std::unique_ptr<void, void (*)(void*)> data_;
};

// docs/cuda_kernels.md, which has a line for each kernel.
std::string ReadPage() {
  std::ifstream file("docs/cuda_kernels.md");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// "1,024".
std::string Grouped(int64_t number) {
  std::string digits = std::to_string(number);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<size_t>(at), ",");
  }
  return digits;
}

// What the kernels of a test compute in.
std::string dtype_of_test;

// Runs a kernel that must move `least` bytes, prints what it moves, which the
// page says too, and expects nine tenths of that at least to be what it must.
void ExpectMovesLittle(const char* name, int64_t least,
                       const std::function<void(KernelContext&)>& kernel) {
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
                           " | " + Grouped(least) + " | " +
                           Grouped(traffic.bytes()) + " | " + ratio + " |";
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
  ExpectMovesLittle("copy", 2 * a_.bytes(), [&](KernelContext& context) {
    Kernels().copy({kShape, In(a_, dtype_, kCols), Out(b_, dtype_, kCols)},
                   context);
  });
  ExpectMovesLittle(
      "copy, transposed", 2 * a_.bytes(), [&](KernelContext& context) {
        CopyArgs args = {
            kShape, {a_.get(), dtype_, {1, kRows}}, Out(b_, dtype_, kCols)};
        Kernels().copy(args, context);
      });
  ExpectMovesLittle("silu", 2 * a_.bytes(), [&](KernelContext& context) {
    UnaryArgs args;
    args.op = UnaryOp::kSilu;
    args.shape = kShape;
    args.a = In(a_, dtype_, kCols);
    args.out = Out(b_, dtype_, kCols);
    Kernels().unary(args, context);
  });
  ExpectMovesLittle("add", 3 * a_.bytes(), [&](KernelContext& context) {
    BinaryArgs args;
    args.shape = kShape;
    args.a = In(a_, dtype_, kCols);
    args.b = In(b_, dtype_, kCols);
    args.out = Out(c_, dtype_, kCols);
    Kernels().binary(args, context);
  });
  ExpectMovesLittle("silu_mul", 3 * a_.bytes(), [&](KernelContext& context) {
    Kernels().silu_mul({kShape, In(a_, dtype_, kCols), In(b_, dtype_, kCols),
                        Out(c_, dtype_, kCols)},
                       context);
  });
  const Buffer e(dtype_, kElements);
  ExpectMovesLittle("silu_mul_backward", 5 * a_.bytes(),
                    [&](KernelContext& context) {
                      Kernels().silu_mul_backward(
                          {kShape, In(a_, dtype_, kCols), In(b_, dtype_, kCols),
                           In(c_, dtype_, kCols), Out(d_, dtype_, kCols),
                           Out(e, dtype_, kCols)},
                          context);
                    });
  ExpectMovesLittle("fill", a_.bytes(), [&](KernelContext& context) {
    Kernels().fill({kShape, Out(a_, dtype_, kCols), 1}, context);
  });
  DropoutArgs dropout;
  dropout.shape = kShape;
  dropout.x = In(a_, dtype_, kCols);
  dropout.out = b_.get();
  dropout.p = 0.5;
  dropout.global_sizes[0] = kRows;
  dropout.global_sizes[1] = kCols;
  ExpectMovesLittle("dropout", 2 * a_.bytes(), [&](KernelContext& context) {
    Kernels().dropout(dropout, context);
  });
}

TEST_P(TrafficTest, Rows) {
  const DType statistics = StatisticsDType(dtype_);
  const Buffer of_rows(statistics, kRows), more_of_rows(statistics, kRows),
      weight(dtype_, kCols);
  const int64_t small = of_rows.bytes();
  ExpectMovesLittle("softmax", 2 * a_.bytes(), [&](KernelContext& context) {
    Kernels().softmax({kRows, kCols, RowsOf(a_), RowsTo(b_), dtype_}, context);
  });
  ExpectMovesLittle(
      "softmax_backward", 3 * a_.bytes(), [&](KernelContext& context) {
        Kernels().softmax_backward(
            {kRows, kCols, RowsOf(a_), RowsOf(b_), RowsTo(c_), dtype_},
            context);
      });
  // Each piece of rows reads the weight for itself.
  const Buffer many(dtype_, 4096 * 256), to_many(dtype_, 4096 * 256),
      of_many(statistics, 4096);
  ExpectMovesLittle("rms_norm", 2 * many.bytes() + of_many.bytes(),
                    [&](KernelContext& context) {
                      Kernels().rms_norm({4096,
                                          256,
                                          {many.get(), 256},
                                          weight.get(),
                                          {to_many.get(), 256},
                                          of_many.get(),
                                          dtype_,
                                          1e-5},
                                         context);
                    });
  const Buffer targets(DType::kInt64, kRows);
  const TargetsInput classes = {targets.get(), DType::kInt64, -100};
  ExpectMovesLittle(
      "cross_entropy", a_.bytes() + 2 * small, [&](KernelContext& context) {
        Kernels().cross_entropy({kRows, kCols, RowsOf(a_), classes,
                                 of_rows.get(), more_of_rows.get(), dtype_},
                                context);
      });
  ExpectMovesLittle("cross_entropy_backward", 2 * a_.bytes() + small,
                    [&](KernelContext& context) {
                      Kernels().cross_entropy_backward(
                          {kRows, kCols, 0, RowsOf(a_), classes, of_rows.get(),
                           more_of_rows.get(), 0, RowsTo(b_), dtype_},
                          context);
                    });
  const Buffer ids(DType::kInt64, kRows);
  ExpectMovesLittle("embedding", 2 * a_.bytes(), [&](KernelContext& context) {
    Kernels().embedding({kRows, kCols, 0, kRows, ids.get(), DType::kInt64,
                         RowsOf(a_), RowsTo(b_), dtype_},
                        context);
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
        name, a_.bytes() + outputs * SizeOf(dtype_),
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
  ExpectMovesLittle("adamw", 7 * p.bytes(), [&](KernelContext& context) {
    Kernels().adamw(args, context);
  });
}

TEST(TrafficOfTrainingTest, AccumulateRanks) {
  dtype_of_test = Name(kBFloat16);
  const Buffer a(kBFloat16, kElements), b(kBFloat16, kElements),
      c(kBFloat16, kElements), out(kBFloat16, kElements);
  const void* sources[] = {a.get(), b.get(), c.get()};
  const AccumulateRanksArgs args = {
      ReduceOp::kSum, sources, 3, out.get(), kElements, kBFloat16, kBFloat16};
  ExpectMovesLittle("accumulate_ranks", 4 * a.bytes(),
                    [&](KernelContext& context) {
                      Kernels().accumulate_ranks(args, context);
                    });
}

}  // namespace
}  // namespace crosshatch
