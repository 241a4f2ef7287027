// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "crosshatch/tensor/kernels/philox.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using kernel_test::Kernels;
using kernel_test::Operand;
using kernel_test::Reals;
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
  kernel_test::Random random(5);
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

TEST(RandomTest, VectorsHaveTheBitsOfTheDefinition) {
  for (RandomKind kind : {RandomKind::kUniform, RandomKind::kNormal}) {
    for (int64_t first : {int64_t{0}, int64_t{0xFFFFFFF0}, int64_t{1} << 40}) {
      for (int64_t n : {0, 1, 2, 3, 5, 7, 13, 31, 64, 127, 50000}) {
        Operand out(DType::kFloat32, {n});
        RandomArgs args = Args(out, kind, {first}, {int64_t{1} << 50});
        args.a = -0.25;
        args.b = 1.5;
        kernel_test::RunAllWays(
            {&out},
            [&](KernelContext& context) { Kernels().random(args, context); },
            "random");
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
  Operand normal(DType::kFloat32, {8}), uniform(DType::kFloat32, {8});
  KernelContext& context = kernel_test::Context();
  Kernels().random(Args(normal, RandomKind::kNormal, {0}, {8}), context);
  Kernels().random(Args(uniform, RandomKind::kUniform, {0}, {8}), context);
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
  Operand whole(DType::kFloat32, global);
  KernelContext& context = kernel_test::Context();
  Kernels().random(Args(whole, RandomKind::kNormal, {0, 0, 0}, global),
                   context);
  const std::vector<uint32_t> all = Bits(whole);
  const std::vector<std::vector<int64_t>> boxes = {
      {0, 0, 0, 5, 7, 13}, {1, 0, 0, 3, 7, 13}, {0, 2, 0, 5, 3, 13},
      {4, 6, 12, 1, 1, 1}, {1, 2, 3, 2, 4, 9},  {0, 0, 5, 5, 7, 0},
      {2, 3, 0, 1, 4, 13}};
  for (const auto& box : boxes) {
    Operand part(DType::kFloat32, {box[3], box[4], box[5]});
    Kernels().random(
        Args(part, RandomKind::kNormal, {box[0], box[1], box[2]}, global),
        context);
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
  Operand normal(DType::kFloat32, {kCount}), uniform(DType::kFloat32, {kCount});
  KernelContext& context = kernel_test::Context();
  Kernels().random(Args(normal, RandomKind::kNormal, {0}, {kCount}), context);
  Kernels().random(Args(uniform, RandomKind::kUniform, {0}, {kCount}), context);
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
  for (DType dtype : kernel_test::kFloatDTypes) {
    Operand floats(DType::kFloat32, {1000}), out(dtype, {1000});
    KernelContext& context = kernel_test::Context();
    Kernels().random(Args(floats, RandomKind::kNormal, {0}, {1000}), context);
    Kernels().random(Args(out, RandomKind::kNormal, {0}, {1000}), context);
    Operand rounded(dtype, {1000});
    rounded.Set(floats.Read());
    EXPECT_EQ(out.Read(), rounded.Read()) << Name(dtype);
  }
}

}  // namespace
}  // namespace crosshatch
