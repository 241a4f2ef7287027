// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "crosshatch/tensor/kernels/philox.h"
#include "gtest/gtest.h"

namespace crosshatch::kernel_test {
namespace {

void TestAccumulate(ReduceOp op, DType dtype, DType out_dtype, int ranks,
                    int64_t count, double scale) {
  Random random(static_cast<uint64_t>(count + ranks));
  std::vector<Operand> sources;
  std::vector<const void*> pointers;
  for (int r = 0; r < ranks; ++r) {
    sources.emplace_back(dtype, std::vector<int64_t>{count});
    sources.back().Fill(random, 1, 3);
  }
  for (const Operand& source : sources) pointers.push_back(source.data());
  Operand out(out_dtype, {count});
  const AccumulateRanksArgs args = {
      op, pointers.data(), ranks, out.data(), count, dtype, out_dtype, scale};
  const std::string what = std::string("accumulate_ranks of ") + Name(dtype);
  RunAllWays(&KernelTable::accumulate_ranks, args, {&out}, what);
  Reals expected = sources[0].Read();
  for (int r = 1; r < ranks; ++r) {
    const Reals next = sources[static_cast<size_t>(r)].Read();
    for (size_t i = 0; i < next.size(); ++i) {
      switch (op) {
        case ReduceOp::kSum:
        case ReduceOp::kAvg:
          expected[i] += next[i];
          break;
        case ReduceOp::kProduct:
          expected[i] *= next[i];
          break;
        case ReduceOp::kMin:
          expected[i] = std::min(expected[i], next[i]);
          break;
        case ReduceOp::kMax:
          expected[i] = std::max(expected[i], next[i]);
          break;
      }
    }
  }
  Reals bounds;
  for (Real& value : expected) {
    if (op == ReduceOp::kAvg) value /= ranks;
    value *= scale;
    if (!IsFloatingPoint(dtype)) value = std::trunc(value);
    bounds.push_back(IsFloatingPoint(dtype) &&
                             (op < ReduceOp::kMin || scale != 1)
                         ? Gamma(dtype, ranks + 2) * std::abs(value)
                         : Real(0));
  }
  ExpectWithin(out.Read(), expected, bounds, out_dtype, what);
}

TEST(AccumulateRanksTest, AllOps) {
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct,
                      ReduceOp::kMin, ReduceOp::kMax}) {
    for (int64_t count : {0, 1, 2, 3, 5, 7, 13, 31, 64, 127, 70001}) {
      for (int ranks : {1, 2, 3, 7}) {
        if (count > 1000 && ranks != 3) continue;
        for (DType dtype : kFloatDTypes) {
          TestAccumulate(op, dtype, dtype, ranks, count, 1);
          TestAccumulate(op, dtype, dtype, ranks, count, 0.3);
        }
        TestAccumulate(op, kBFloat16, kFloat32, ranks, count, 1);
        TestAccumulate(op, kInt32, kInt32, ranks, count, 1);
        TestAccumulate(op, kInt64, kInt64, ranks, count, 1);
      }
    }
  }
}

// Parts of matrices as sources and out.
void TestRuns(DType dtype, int ranks, int64_t runs, int64_t count,
              LayoutKind layout) {
  Random random(3);
  std::vector<Operand> sources;
  std::vector<const void*> pointers;
  std::vector<int64_t> strides;
  for (int r = 0; r < ranks; ++r) {
    // If runs need not be aligned, the second source has no gaps.
    const bool has_gaps = r != 1 || layout == LayoutKind::kAlignedRows;
    sources.emplace_back(dtype, std::vector<int64_t>{runs, count},
                         has_gaps ? layout : LayoutKind::kContiguous);
    sources.back().Fill(random, 1, 3);
    strides.push_back(sources.back().stride(0));
  }
  for (const Operand& source : sources) pointers.push_back(source.data());
  Operand out(dtype, {runs, count}, layout),
      expected(dtype, {runs, count}, layout);
  const int64_t out_stride = out.stride(0);
  AccumulateRanksArgs args = {
      ReduceOp::kSum, pointers.data(), ranks,     out.data(),
      count,          dtype,           dtype,     1,
      runs,           strides.data(),  out_stride};
  RunAllWays(&KernelTable::accumulate_ranks, args, {&out},
             "accumulate_ranks of runs");
  args.runs = 1;
  const auto move_on = [&](const void* data, int64_t elems) {
    return static_cast<const std::byte*>(data) + elems * SizeOf(dtype);
  };
  for (int64_t run = 0; run < runs; ++run) {
    std::vector<const void*> of_run;
    for (size_t r = 0; r < pointers.size(); ++r) {
      of_run.push_back(move_on(pointers[r], run * strides[r]));
    }
    args.sources = of_run.data();
    args.out =
        const_cast<std::byte*>(move_on(expected.data(), run * out_stride));
    RunKernel(&KernelTable::accumulate_ranks, args);
  }
  EXPECT_EQ(out.Read(), expected.Read())
      << Name(dtype) << ", " << ranks << " ranks, " << runs << " runs of "
      << count;
}

TEST(AccumulateRanksTest, EvenlySpacedRuns) {
  for (DType dtype : {kFloat32, kFloat64, kBFloat16, kFloat16, kInt32}) {
    for (int64_t runs : {1, 2, 3, 40}) {
      for (int64_t count : {1, 3, 8, 67}) {
        for (LayoutKind layout :
             {LayoutKind::kAlignedRows, LayoutKind::kUnalignedRows}) {
          TestRuns(dtype, 3, runs, count, layout);
        }
      }
    }
    TestRuns(dtype, 300, 3, 7, LayoutKind::kUnalignedRows);
    TestRuns(dtype, 130, 3, 21, LayoutKind::kAlignedRows);
  }
}

TEST(AccumulateRanksTest, MoreRanksThanAKernelMayTakeAtOnce) {
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}) {
    for (int ranks : {256, 257, 600}) {
      for (DType dtype : kFloatDTypes) {
        TestAccumulate(op, dtype, dtype, ranks, 37, 0.3);
      }
      TestAccumulate(op, kBFloat16, kFloat32, ranks, 37, 1);
      if (op == ReduceOp::kAvg) continue;
      TestAccumulate(op, kInt32, kInt32, ranks, 37, 1);
    }
  }
}

TEST(AccumulateRanksTest, OutMayBeASource) {
  Random random(1);
  Operand a(kFloat32, {5000}), b(kFloat32, {5000}), apart(kFloat32, {5000});
  a.Fill(random, -1, 1);
  b.Fill(random, -1, 1);
  const void* sources[] = {a.data(), b.data()};
  AccumulateRanksArgs args = {ReduceOp::kSum, sources, 2, apart.data(), 5000};
  RunKernel(&KernelTable::accumulate_ranks, args);
  args.out = b.data();
  RunKernel(&KernelTable::accumulate_ranks, args);
  EXPECT_EQ(b.Read(), apart.Read());
}

void TestAdamW(int64_t count, double beta1, bool scaled) {
  Random random(static_cast<uint64_t>(count));
  Operand param(kFloat32, {count}), grad(kFloat32, {count}),
      exp_avg(kFloat32, {count}), exp_avg_sq(kFloat32, {count});
  param.Fill(random, -1, 1);
  grad.Fill(random, -1, 1);
  exp_avg.Fill(random, -0.1, 0.1);
  exp_avg_sq.Fill(random, 0, 0.1);
  const float scale = 0.37f;
  const DeviceVector<float> scale_of_gradients = {scale};
  AdamWArgs args;
  args.count = count;
  args.param = static_cast<float*>(param.data());
  args.grad = static_cast<const float*>(grad.data());
  args.exp_avg = static_cast<float*>(exp_avg.data());
  args.exp_avg_sq = static_cast<float*>(exp_avg_sq.data());
  args.lr = 3e-3;
  args.beta1 = beta1;
  args.beta2 = 0.95;
  args.eps = 1e-8;
  args.weight_decay = 0.1;
  args.bias_correction1 = 1 - std::pow(beta1, 3);
  args.bias_correction2 = 1 - std::pow(0.95, 3);
  args.grad_scale = scaled ? scale_of_gradients.data() : nullptr;

  Reals p = param.Read(), m = exp_avg.Read(), v = exp_avg_sq.Read();
  const Reals g0 = grad.Read();
  Reals p_bound, m_bound, v_bound;
  for (size_t i = 0; i < p.size(); ++i) {
    const Real g = g0[i] * (scaled ? Real(scale) : Real(1));
    p_bound.push_back(Gamma(kFloat32, 3) * std::abs(p[i]));
    p[i] *= 1 - Real(args.lr) * Real(args.weight_decay);
    m_bound.push_back(Gamma(kFloat32, 5) * (std::abs(m[i]) + 2 * std::abs(g)));
    m[i] += (1 - Real(beta1)) * (g - m[i]);
    v[i] = Real(args.beta2) * v[i] + (1 - Real(args.beta2)) * g * g;
    v_bound.push_back(Gamma(kFloat32, 6) * v[i]);
    const Real root =
        std::sqrt(v[i]) / std::sqrt(Real(args.bias_correction2)) + args.eps;
    const Real step = Real(args.lr) / Real(args.bias_correction1);
    p[i] -= step * m[i] / root;
    p_bound.back() += Gamma(kFloat32, 16) * std::abs(step * m[i] / root) +
                      step / root * m_bound.back();
  }
  RunAllWays(&KernelTable::adamw, args, {&param, &exp_avg, &exp_avg_sq},
             "adamw");
  ExpectWithin(exp_avg.Read(), m, m_bound, kFloat32, "exp_avg");
  ExpectWithin(exp_avg_sq.Read(), v, v_bound, kFloat32, "exp_avg_sq");
  ExpectWithin(param.Read(), p, p_bound, kFloat32, "param");
}

TEST(AdamWTest, MatchesItsDefinition) {
  for (int64_t count : {0, 1, 2, 3, 5, 7, 13, 31, 64, 127, 40001}) {
    TestAdamW(count, 0.9, false);
    TestAdamW(count, 0.3, true);
  }
}

TEST(AdamWTest, SpansMayBeCutAnywhere) {
  for (int64_t cut : {0, 1, 3, 8, 50, 100}) {
    Random random(1);
    Operand whole(kFloat32, {4, 100});
    whole.Fill(random, 0.125, 1);
    Operand cut_up(kFloat32, {4, 100});
    cut_up.Set(whole.Read());
    const auto update = [&](Operand& x, int64_t begin, int64_t end) {
      auto* data = static_cast<float*>(x.data());
      AdamWArgs args;
      args.count = end - begin;
      args.param = data + begin;
      args.grad = data + 100 + begin;
      args.exp_avg = data + 200 + begin;
      args.exp_avg_sq = data + 300 + begin;
      args.lr = 0.1;
      args.beta1 = 0.9;
      args.beta2 = 0.99;
      args.eps = 1e-8;
      RunKernel(&KernelTable::adamw, args);
    };
    update(whole, 0, 100);
    update(cut_up, 0, cut);
    update(cut_up, cut, 100);
    EXPECT_EQ(whole.bytes(), cut_up.bytes()) << cut;
  }
}

using Words = std::array<uint32_t, 4>;

// The known answers of the Random123 library.
TEST(PhiloxTest, KnownAnswers) {
  EXPECT_EQ(internal::Philox({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(internal::Philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
                             {0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(internal::Philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                             {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// Box-Muller in double: the polynomials have an error of about 1e-6.
TEST(PhiloxTest, NormalsAreBoxMullers) {
  Random random(5);
  const auto check = [](uint32_t word0, uint32_t word1) {
    const double u = ((word0 >> 8) + 1.0) * 0x1.0p-24;
    const double turn = (word1 >> 8) * 0x1.0p-24;
    const double expected =
        std::sqrt(-2 * std::log(u)) * std::cos(2 * std::acos(-1.0) * turn);
    EXPECT_NEAR(internal::NormalOf(word0, word1), expected,
                1e-6 * (1 + std::abs(expected)))
        << word0 << " " << word1;
  };
  for (int i = 0; i < 200000; ++i) {
    const uint64_t bits = random.Next();
    check(static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32));
  }
  for (uint32_t word0 :
       {0u, 255u, 256u, 0xFFFFFFFFu, 0xFFFFFE00u, 0xB504F300u}) {
    for (uint32_t word1 :
         {0u, 0x20000000u, 0x1FFFFFFFu, 0x40000000u, 0x80000000u, 0xC0000000u,
          0xE0000000u, 0xFFFFFFFFu}) {
      check(word0, word1);
    }
  }
}

RandomArgs Args(Operand& out, RandomKind kind, std::vector<int64_t> offsets,
                std::vector<int64_t> global) {
  RandomArgs args;
  args.kind = kind;
  args.out = out.data();
  args.dtype = out.dtype();
  args.key = 0x0123456789ABCDEFu;
  args.stream = 0xFEDCBA9876543210u;
  args.box = out.shape();
  std::copy(offsets.begin(), offsets.end(), args.offsets);
  std::copy(global.begin(), global.end(), args.global_sizes);
  return args;
}

std::vector<uint32_t> Bits(const Operand& x) {
  std::vector<uint32_t> bits(static_cast<size_t>(x.numel()));
  if (!bits.empty()) {
    std::memcpy(bits.data(), x.data(), bits.size() * sizeof(uint32_t));
  }
  return bits;
}

TEST(RandomTest, AnyAddressHasTheSameNumbers) {
  for (DType dtype : kFloatDTypes) {
    Operand aligned(dtype, {37}), out(dtype, {38});
    RunKernel(&KernelTable::random,
              Args(aligned, RandomKind::kUniform, {5}, {100}));
    RandomArgs args = Args(out, RandomKind::kUniform, {5}, {100});
    args.out = static_cast<std::byte*>(out.data()) + SizeOf(dtype);
    args.box = aligned.shape();
    RunAllWays(&KernelTable::random, args, {&out}, "random");
    Reals numbers = out.Read();
    numbers.erase(numbers.begin());
    EXPECT_EQ(numbers, aligned.Read()) << Name(dtype);
  }
}

TEST(RandomTest, VectorsHaveTheBitsOfTheDefinition) {
  for (RandomKind kind : {RandomKind::kUniform, RandomKind::kNormal}) {
    for (int64_t first : {int64_t{0}, int64_t{0xFFFFFFF0}, int64_t{1} << 40}) {
      for (int64_t n : {0, 1, 2, 3, 5, 7, 13, 31, 64, 127, 50000}) {
        Operand out(kFloat32, {n});
        RandomArgs args = Args(out, kind, {first}, {int64_t{1} << 50});
        args.a = -0.25;
        args.b = 1.5;
        RunAllWays(&KernelTable::random, args, {&out}, "random");
        const std::vector<uint32_t> bits = Bits(out);
        for (int64_t i = 0; i < n; ++i) {
          const auto element = static_cast<uint64_t>(first + i);
          const Words words =
              internal::Philox({static_cast<uint32_t>(element),
                                static_cast<uint32_t>(element >> 32),
                                static_cast<uint32_t>(args.stream),
                                static_cast<uint32_t>(args.stream >> 32)},
                               {static_cast<uint32_t>(args.key),
                                static_cast<uint32_t>(args.key >> 32)});
          const bool uniform = kind == RandomKind::kUniform;
          const float value = uniform ? internal::UniformOf(words[0])
                                      : internal::NormalOf(words[0], words[1]);
          const float expected =
              std::fma(uniform ? 1.75f : 1.5f, value, -0.25f);
          ASSERT_EQ(bits[static_cast<size_t>(i)],
                    std::bit_cast<uint32_t>(expected))
              << "element " << element;
        }
      }
    }
  }
}

TEST(RandomTest, GoldenBits) {
  Operand normal(kFloat32, {8}), uniform(kFloat32, {8});
  RunKernel(&KernelTable::random, Args(normal, RandomKind::kNormal, {0}, {8}));
  RunKernel(&KernelTable::random,
            Args(uniform, RandomKind::kUniform, {0}, {8}));
  EXPECT_EQ(Bits(normal), (std::vector<uint32_t>{
                              0x3F5977C1, 0xBD81907C, 0xBDCDD092, 0x3F554902,
                              0x3EACC4F7, 0xBE7DEBEB, 0x3FE0FBE0, 0xBF9DD83F}));
  EXPECT_EQ(
      Bits(uniform),
      (std::vector<uint32_t>{0x3F2EF2AD, 0x3F6C2AB3, 0x3F57BB4A, 0x3F13F3FF,
                             0x3F6419B5, 0x3EB3B122, 0x3E331F3C, 0x3ED007EC}));
}

TEST(RandomTest, BoxesArePartsOfTheWhole) {
  const std::vector<int64_t> global = {5, 7, 13};
  Operand whole(kFloat32, global);
  RunKernel(&KernelTable::random,
            Args(whole, RandomKind::kNormal, {0, 0, 0}, global));
  const std::vector<uint32_t> all = Bits(whole);
  const std::vector<std::vector<int64_t>> boxes = {
      {0, 0, 0, 5, 7, 13}, {1, 0, 0, 3, 7, 13}, {0, 2, 0, 5, 3, 13},
      {4, 6, 12, 1, 1, 1}, {1, 2, 3, 2, 4, 9},  {0, 0, 5, 5, 7, 0},
      {2, 3, 0, 1, 4, 13}};
  for (const auto& box : boxes) {
    Operand part(kFloat32, {box[3], box[4], box[5]});
    RunKernel(&KernelTable::random, Args(part, RandomKind::kNormal,
                                         {box[0], box[1], box[2]}, global));
    std::vector<uint32_t> expected;
    for (int64_t i = 0; i < box[3]; ++i) {
      for (int64_t j = 0; j < box[4]; ++j) {
        for (int64_t k = 0; k < box[5]; ++k) {
          expected.push_back(all[static_cast<size_t>(
              ((box[0] + i) * 7 + box[1] + j) * 13 + box[2] + k)]);
        }
      }
    }
    EXPECT_EQ(Bits(part), expected);
  }
}

TEST(RandomTest, Moments) {
  constexpr int64_t kCount = 1 << 18;
  Operand normal(kFloat32, {kCount}), uniform(kFloat32, {kCount});
  RunKernel(&KernelTable::random,
            Args(normal, RandomKind::kNormal, {0}, {kCount}));
  RunKernel(&KernelTable::random,
            Args(uniform, RandomKind::kUniform, {0}, {kCount}));
  double mean = 0, square = 0, fourth = 0, u_mean = 0, u_square = 0;
  const auto* z = static_cast<const float*>(normal.data());
  const auto* u = static_cast<const float*>(uniform.data());
  for (int64_t i = 0; i < kCount; ++i) {
    mean += z[i];
    square += double{z[i]} * z[i];
    fourth += std::pow(double{z[i]}, 4);
    u_mean += u[i];
    u_square += double{u[i]} * u[i];
    ASSERT_GE(u[i], 0);
    ASSERT_LT(u[i], 1);
  }
  // Five standard deviations of each sample moment.
  const double root = std::sqrt(static_cast<double>(kCount));
  EXPECT_NEAR(mean / kCount, 0, 5 / root);
  EXPECT_NEAR(square / kCount, 1, 5 * std::sqrt(2.0) / root);
  EXPECT_NEAR(fourth / kCount, 3, 5 * std::sqrt(96.0) / root);
  EXPECT_NEAR(u_mean / kCount, 0.5, 5 * std::sqrt(1 / 12.0) / root);
  EXPECT_NEAR(u_square / kCount, 1 / 3.0, 5 * std::sqrt(4 / 45.0) / root);
}

TEST(RandomTest, OtherDTypesAreRounded) {
  for (DType dtype : kFloatDTypes) {
    Operand floats(kFloat32, {1000}), out(dtype, {1000});
    RunKernel(&KernelTable::random,
              Args(floats, RandomKind::kNormal, {0}, {1000}));
    RunKernel(&KernelTable::random,
              Args(out, RandomKind::kNormal, {0}, {1000}));
    Operand rounded(dtype, {1000});
    rounded.Set(floats.Read());
    EXPECT_EQ(out.Read(), rounded.Read()) << Name(dtype);
  }
}

}  // namespace
}  // namespace crosshatch::kernel_test
