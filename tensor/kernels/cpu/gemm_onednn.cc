// SPDX-License-Identifier: Apache-2.0
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include <cstdlib>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cpu/gemm.h"

namespace crosshatch::internal {
namespace {

// Some machines advertise AMX and fault on it, and products of float32 must be
// float32 whatever the environment sets for oneDNN. An instruction set named in
// the environment is kept. Effective only before oneDNN's first use.
bool Guard() {
  if (std::getenv("ONEDNN_MAX_CPU_ISA") == nullptr &&
      std::getenv("DNNL_MAX_CPU_ISA") == nullptr) {
    // Fails if the program has already used oneDNN; its setting then stays.
    dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_bf16);
  }
  CH_CHECK(dnnl_set_default_fpmath_mode(dnnl_fpmath_mode_strict) ==
           dnnl_success);
  return true;
}

}  // namespace

void Gemm(int64_t m, int64_t n, int64_t k, float alpha,
          GemmMatrix<const float> a, GemmMatrix<const float> b, float beta,
          GemmMatrix<float> c) {
  static const bool guarded = Guard();
  CH_CHECK(guarded);
  // The library has its own threads: oneDNN's OpenMP must not start any. The
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
