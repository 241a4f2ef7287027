// SPDX-License-Identifier: Apache-2.0
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cpu/gemm.h"

namespace crosshatch::internal {

void Gemm(int64_t m, int64_t n, int64_t k, float alpha,
          GemmMatrix<const float> a, GemmMatrix<const float> b, float beta,
          GemmMatrix<float> c) {
  // The threads are ours: oneDNN's OpenMP must start none of its own. The
  // setting belongs to the calling thread.
  thread_local const bool single_threaded = [] {
    omp_set_num_threads(1);
    return true;
  }();
  CH_CHECK(single_threaded);
  const dnnl_status_t status = dnnl_sgemm(
      a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, alpha,
      a.data, a.leading, b.data, b.leading, beta, c.data, c.leading);
  CH_CHECK(status == dnnl_success)
      << "dnnl_sgemm of (" << m << ", " << k << ") by (" << k << ", " << n
      << ") gave status " << status;
}

}  // namespace crosshatch::internal
