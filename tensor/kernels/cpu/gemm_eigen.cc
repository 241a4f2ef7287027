// SPDX-License-Identifier: Apache-2.0
#include <Eigen/Core>

#include "crosshatch/tensor/kernels/cpu/gemm.h"

namespace crosshatch::internal {
namespace {

template <typename T>
using GemmRowMajor =
    Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <typename T>
using GemmMap = Eigen::Map<const GemmRowMajor<T>, 0, Eigen::OuterStride<>>;

template <typename T, typename A, typename B>
void EigenProduct(const A& a, const B& b, int64_t m, int64_t n, T alpha, T beta,
                  GemmMatrix<T> c) {
  Eigen::Map<GemmRowMajor<T>, 0, Eigen::OuterStride<>> out(
      c.data, m, n, Eigen::OuterStride<>(c.leading));
  if (beta == T(0)) {
    out.noalias() = alpha * (a * b);
  } else {
    if (beta != T(1)) out *= beta;
    out.noalias() += alpha * (a * b);
  }
}

template <typename T>
void EigenGemm(int64_t m, int64_t n, int64_t k, T alpha, GemmMatrix<const T> a,
               GemmMatrix<const T> b, T beta, GemmMatrix<T> c) {
  const Eigen::OuterStride<> a_stride(a.leading);
  const Eigen::OuterStride<> b_stride(b.leading);
  const auto with_b = [&](const auto& left) {
    if (b.transposed) {
      EigenProduct(left, GemmMap<T>(b.data, n, k, b_stride).transpose(), m, n,
                   alpha, beta, c);
    } else {
      EigenProduct(left, GemmMap<T>(b.data, k, n, b_stride), m, n, alpha, beta,
                   c);
    }
  };
  if (a.transposed) {
    with_b(GemmMap<T>(a.data, k, m, a_stride).transpose());
  } else {
    with_b(GemmMap<T>(a.data, m, k, a_stride));
  }
}

}  // namespace

void Gemm(int64_t m, int64_t n, int64_t k, double alpha,
          GemmMatrix<const double> a, GemmMatrix<const double> b, double beta,
          GemmMatrix<double> c) {
  EigenGemm(m, n, k, alpha, a, b, beta, c);
}

#ifndef CROSSHATCH_GEMM_ONEDNN
void Gemm(int64_t m, int64_t n, int64_t k, float alpha,
          GemmMatrix<const float> a, GemmMatrix<const float> b, float beta,
          GemmMatrix<float> c) {
  EigenGemm(m, n, k, alpha, a, b, beta, c);
}
#endif

}  // namespace crosshatch::internal
