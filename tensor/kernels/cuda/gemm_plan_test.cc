// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cuda/gemm_plan.h"

#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

alignas(64) float memory[64];

// Returns the product of (5, 7) and (7, 3) in float32.
CudaGemmArgs Product() {
  CudaGemmArgs args;
  args.m = 5;
  args.n = 3;
  args.k = 7;
  args.a = {.data = memory, .leading = 7};
  args.b = {.data = memory, .leading = 3};
  args.out = {.data = memory, .leading = 3};
  return args;
}

// A row-major matrix is the transpose of a column-major one: out^T = b^T a^T.
TEST(GemmPlanTest, PutsRowsToALibraryOfColumns) {
  const GemmPlan plan = PlanGemm(Product());
  EXPECT_EQ(plan.left, (GemmLayout{.rows = 3, .cols = 7, .leading = 3}));
  EXPECT_EQ(plan.right, (GemmLayout{.rows = 7, .cols = 5, .leading = 7}));
  EXPECT_EQ(plan.out, (GemmLayout{.rows = 3, .cols = 5, .leading = 3}));
  EXPECT_FALSE(plan.transpose_left || plan.transpose_right);
  EXPECT_EQ(plan.bias_alignment, 0u);
}

// A weight [out, in] is b^T. Its memory is already the column-major b.
TEST(GemmPlanTest, ATransposedMatrixIsTransposedByTheLibrary) {
  CudaGemmArgs args = Product();
  args.b = {.data = memory, .leading = 7, .transposed = true};
  const GemmPlan plan = PlanGemm(args);
  EXPECT_EQ(plan.left, (GemmLayout{.rows = 7, .cols = 3, .leading = 7}));
  EXPECT_TRUE(plan.transpose_left);
  EXPECT_FALSE(plan.transpose_right);
}

TEST(GemmPlanTest, OnlyFloat32IsComputedInTf32) {
  CudaGemmArgs args = Product();
  EXPECT_EQ(PlanGemm(args).compute, GemmCompute::kFloat32);
  args.tf32 = true;
  EXPECT_EQ(PlanGemm(args).compute, GemmCompute::kTf32);
  for (DType dtype : {kBFloat16, kFloat16}) {
    args.dtype = dtype;
    EXPECT_EQ(PlanGemm(args).compute, GemmCompute::kFloat32);
  }
  args.dtype = args.out_dtype = kFloat64;
  EXPECT_EQ(PlanGemm(args).compute, GemmCompute::kFloat64);
}

// The key of an algorithm contains everything except addresses and factors.
TEST(GemmPlanTest, PlansDifferInAllThatAnAlgorithmIsChosenBy) {
  const std::vector<std::pair<std::string, std::function<void(CudaGemmArgs&)>>>
      changes = {
          {"nothing", [](CudaGemmArgs&) {}},
          {"m", [](CudaGemmArgs& args) { args.m = 6; }},
          {"n", [](CudaGemmArgs& args) { args.n = 4; }},
          {"k", [](CudaGemmArgs& args) { args.k = 8; }},
          {"batch", [](CudaGemmArgs& args) { args.batch = 2; }},
          {"dtype",
           [](CudaGemmArgs& args) { args.dtype = args.out_dtype = kBFloat16; }},
          {"dtype of the operands",
           [](CudaGemmArgs& args) { args.dtype = kBFloat16; }},
          {"bias", [](CudaGemmArgs& args) { args.bias = memory; }},
          {"alignment of the bias",
           [](CudaGemmArgs& args) { args.bias = memory + 1; }},
          {"tf32", [](CudaGemmArgs& args) { args.tf32 = true; }},
          {"leading of a", [](CudaGemmArgs& args) { args.a.leading = 9; }},
          {"leading of b", [](CudaGemmArgs& args) { args.b.leading = 9; }},
          {"leading of out", [](CudaGemmArgs& args) { args.out.leading = 9; }},
          {"transposed a",
           [](CudaGemmArgs& args) { args.a.transposed = true; }},
          {"transposed b",
           [](CudaGemmArgs& args) { args.b.transposed = true; }},
          {"stride of a", [](CudaGemmArgs& args) { args.a.batch_stride = 9; }},
          {"stride of b", [](CudaGemmArgs& args) { args.b.batch_stride = 9; }},
          {"stride of out",
           [](CudaGemmArgs& args) { args.out.batch_stride = 9; }},
          {"alignment of a",
           [](CudaGemmArgs& args) { args.a.data = memory + 1; }},
          {"alignment of b",
           [](CudaGemmArgs& args) { args.b.data = memory + 2; }},
          {"alignment of out",
           [](CudaGemmArgs& args) { args.out.data = memory + 3; }},
      };
  std::set<GemmPlan> plans;
  for (const auto& [what, change] : changes) {
    CudaGemmArgs args = Product();
    change(args);
    EXPECT_TRUE(plans.insert(PlanGemm(args)).second) << what;
  }
  CudaGemmArgs elsewhere = Product();
  elsewhere.a.data = memory + 4;
  elsewhere.b.data = memory + 8;
  elsewhere.out.data = memory + 16;
  elsewhere.alpha = 2;
  elsewhere.beta = 1;
  EXPECT_TRUE(plans.contains(PlanGemm(elsewhere)));
}

// The library multiplies float8 only if both operands are contiguous along k,
// and sizes and addresses are multiples of 16.
TEST(GemmPlanTest, Float8NeedsTheLibrarysForm) {
  alignas(64) static std::byte bytes[64];
  CudaGemmArgs args;
  args.m = 5;
  args.n = 16;
  args.k = 32;
  args.a = {.data = bytes, .leading = 32};
  args.b = {.data = bytes, .leading = 32, .transposed = true};
  args.out = {.data = bytes, .leading = 16};
  args.dtype = kFloat8E5M2;
  args.b_dtype = kFloat8E4M3;
  args.out_dtype = kBFloat16;
  const GemmPlan plan = PlanGemm(args);
  EXPECT_EQ(plan.left.dtype, kFloat8E4M3);
  EXPECT_EQ(plan.right.dtype, kFloat8E5M2);
  EXPECT_TRUE(plan.transpose_left && !plan.transpose_right);
  EXPECT_EQ(plan.scales, GemmScales::kTensor);
  EXPECT_EQ(WhyNotFloat8(plan), "");
  args.scales_by_row = true;
  EXPECT_EQ(PlanGemm(args).scales, GemmScales::kRow);
  const auto why = [&](auto change) {
    GemmPlan changed = plan;
    change(changed);
    return WhyNotFloat8(changed);
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(why([](auto& p) { p.left.dtype = kFloat8E5M2; }), "e5m2"));
  EXPECT_TRUE(has(why([](auto& p) { p.right.dtype = kBFloat16; }), "bf16"));
  EXPECT_TRUE(has(why([](auto& p) { p.out.dtype = kFloat64; }), "f64"));
  EXPECT_TRUE(
      has(why([](auto& p) { p.transpose_left = false; }), "contiguous"));
  EXPECT_TRUE(
      has(why([](auto& p) { p.transpose_right = true; }), "contiguous"));
  EXPECT_TRUE(has(why([](auto& p) { p.left.rows = 24; }), "16"));
  EXPECT_TRUE(has(why([](auto& p) { p.right.leading = 40; }), "16"));
  EXPECT_TRUE(has(why([](auto& p) { p.out.rows = 8; }), "16"));
  EXPECT_TRUE(has(why([](auto& p) { p.right.alignment = 8; }), "16"));
  EXPECT_TRUE(has(why([](auto& p) { p.batch = 2; }), "batch"));
  EXPECT_TRUE(
      has(why([](auto& p) { p.compute = GemmCompute::kTf32; }), "float32"));
}

}  // namespace
}  // namespace crosshatch::internal
