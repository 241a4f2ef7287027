// SPDX-License-Identifier: Apache-2.0
#include <oneapi/dnnl/dnnl.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "crosshatch/tensor/kernels/cpu/gemm.h"
#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

TEST(GemmOneDnnTest, UsesNeitherAmxNorFewerBitsInAnyEnvironment) {
  ASSERT_NE(std::getenv("ONEDNN_DEFAULT_FPMATH_MODE"), nullptr);
  // 64 products of (1 + 2^-12)^2, which bfloat16 and float16 would round.
  constexpr int64_t kSize = 64;
  const float x = 1 + 0x1p-12f;
  std::vector<float> a(kSize * kSize, x);
  std::vector<float> c(kSize * kSize);
  Gemm(kSize, kSize, kSize, 1.0f, {a.data(), kSize, false},
       {a.data(), kSize, false}, 0.0f, {c.data(), kSize, false});
  for (const float value : c) {
    // The sum of 64 products, each rounded to float32.
    EXPECT_NEAR(value, 64 * static_cast<double>(x) * x, 64 * 64 * 0x1p-24);
  }
  dnnl_fpmath_mode_t mode = dnnl_fpmath_mode_any;
  ASSERT_EQ(dnnl_get_default_fpmath_mode(&mode), dnnl_success);
  EXPECT_EQ(mode, dnnl_fpmath_mode_strict);
  const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
  EXPECT_NE(isa, dnnl_cpu_isa_avx512_core_amx);
  // The setting is final after the first product.
  EXPECT_NE(dnnl_set_max_cpu_isa(dnnl_cpu_isa_all), dnnl_success);
}

}  // namespace
}  // namespace crosshatch::internal
