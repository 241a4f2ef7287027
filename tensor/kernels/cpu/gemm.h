// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CPU_GEMM_H_
#define CROSSHATCH_TENSOR_KERNELS_CPU_GEMM_H_

/// \file
/// One matrix product on the calling thread, by a library. The build picks the
/// one for float (--//third_party:blas); double is always Eigen's.

#include <cstdint>

namespace crosshatch::internal {

/// A matrix of unit stride in one of its dims.
template <typename T>
struct GemmMatrix {
  T* data;
  /// Elements from one row to the next, or, where transposed, from one column
  /// to the next; at least the size of the other dim and at least 1.
  int64_t leading;
  bool transposed;
};

/// c = alpha * a b + beta * c: a (m, k), b (k, n), c (m, n) not transposed; all
/// sizes positive. With beta == 0 the old c is not read.
void Gemm(int64_t m, int64_t n, int64_t k, float alpha,
          GemmMatrix<const float> a, GemmMatrix<const float> b, float beta,
          GemmMatrix<float> c);
void Gemm(int64_t m, int64_t n, int64_t k, double alpha,
          GemmMatrix<const double> a, GemmMatrix<const double> b, double beta,
          GemmMatrix<double> c);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_GEMM_H_
