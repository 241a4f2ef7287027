// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cpu/gemm_eigen-inl.h"

namespace crosshatch::internal {

void Gemm(int64_t m, int64_t n, int64_t k, double alpha,
          GemmMatrix<const double> a, GemmMatrix<const double> b, double beta,
          GemmMatrix<double> c) {
  EigenGemm(m, n, k, alpha, a, b, beta, c);
}

}  // namespace crosshatch::internal
