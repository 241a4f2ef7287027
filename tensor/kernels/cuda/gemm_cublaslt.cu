// SPDX-License-Identifier: Apache-2.0
#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cuda/cuda_api.cuh"
#include "crosshatch/tensor/kernels/cuda/gemm.h"

namespace crosshatch::internal {
namespace {

void Check(cublasStatus_t status, const char* what) {
  CH_CHECK(status == CUBLAS_STATUS_SUCCESS)
      << what << ": " << cublasLtGetStatusName(status);
}

cudaDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return CUDA_R_64F;
    case DType::kBFloat16:
      return CUDA_R_16BF;
    case DType::kFloat16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

/// How a matrix lies for the library, which counts columns first: ours is the
/// transpose of what it sees.
struct Layout {
  Layout(DType dtype, int64_t rows, int64_t cols, const CudaMatrix& matrix,
         int64_t batch) {
    if (matrix.transposed) std::swap(rows, cols);
    Check(cublasLtMatrixLayoutCreate(
              &layout, TypeOf(dtype), static_cast<uint64_t>(cols),
              static_cast<uint64_t>(rows), matrix.leading),
          "cublasLtMatrixLayoutCreate");
    const auto count = static_cast<int32_t>(batch);
    Check(
        cublasLtMatrixLayoutSetAttribute(
            layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)),
        "cublasLtMatrixLayoutSetAttribute");
    Check(cublasLtMatrixLayoutSetAttribute(
              layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
              &matrix.batch_stride, sizeof(matrix.batch_stride)),
          "cublasLtMatrixLayoutSetAttribute");
  }
  ~Layout() { cublasLtMatrixLayoutDestroy(layout); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;

  cublasLtMatrixLayout_t layout = nullptr;
};

/// The greatest power of two, at most 16, that an address is a multiple of.
uint32_t AlignmentOf(const void* data) {
  uint32_t bytes = 16;
  while (reinterpret_cast<uintptr_t>(data) % bytes != 0) bytes /= 2;
  return bytes;
}

/// All that an algorithm is chosen by.
using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                       int64_t, int64_t, int64_t, int64_t, int, int, bool, bool,
                       uint32_t, uint32_t, uint32_t>;

Key KeyOf(const CudaGemmArgs& args) {
  return {args.m,
          args.n,
          args.k,
          args.batch,
          args.a.leading,
          args.b.leading,
          args.out.leading,
          args.a.batch_stride,
          args.b.batch_stride,
          args.out.batch_stride,
          static_cast<int>(args.dtype),
          static_cast<int>(args.out_dtype),
          args.a.transposed,
          args.b.transposed,
          AlignmentOf(args.a.data),
          AlignmentOf(args.b.data),
          AlignmentOf(args.out.data)};
}

/// The library's handle of a device, and the algorithms chosen so far.
struct Library {
  Library() { Check(cublasLtCreate(&handle), "cublasLtCreate"); }

  cublasLtHandle_t handle = nullptr;
  std::mutex mutex;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms;
};

Library& LibraryOfCurrentDevice() {
  static std::mutex mutex;
  static auto* const libraries = new std::map<int, Library>;
  int device = 0;
  CheckCuda(cudaGetDevice(&device), "cudaGetDevice");
  std::lock_guard<std::mutex> lock(mutex);
  return (*libraries)[device];
}

cublasLtMatmulAlgo_t Choose(Library& library, const CudaGemmArgs& args,
                            cublasLtMatmulDesc_t product, const Layout& left,
                            const Layout& right, const Layout& out) {
  const Key key = KeyOf(args);
  std::lock_guard<std::mutex> lock(library.mutex);
  if (const auto found = library.algorithms.find(key);
      found != library.algorithms.end()) {
    return found->second;
  }
  cublasLtMatmulPreference_t preference = nullptr;
  Check(cublasLtMatmulPreferenceCreate(&preference),
        "cublasLtMatmulPreferenceCreate");
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute,
                       auto value) {
    Check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value,
                                               sizeof(value)),
          "cublasLtMatmulPreferenceSetAttribute");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
      static_cast<uint64_t>(kCudaGemmWorkspaceBytes));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOf(args.b.data));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, AlignmentOf(args.a.data));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, AlignmentOf(args.out.data));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, AlignmentOf(args.out.data));
  // No sum in an order that differs from run to run.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE |
                            CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  cublasLtMatmulHeuristicResult_t result = {};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      library.handle, product, left.layout, right.layout, out.layout,
      out.layout, preference, 1, &result, &found);
  cublasLtMatmulPreferenceDestroy(preference);
  CH_CHECK(status == CUBLAS_STATUS_SUCCESS && found == 1)
      << "cuBLASLt has no product (" << args.m << ", " << args.k << ") by ("
      << args.k << ", " << args.n << ") of " << Name(args.dtype) << " to "
      << Name(args.out_dtype) << ": " << cublasLtGetStatusName(status);
  return library.algorithms[key] = result.algo;
}

}  // namespace

const int64_t kCudaGemmWorkspaceBytes = int64_t{8} << 20;

void CudaGemm(const CudaGemmArgs& args, KernelContext& context) {
  Library& library = LibraryOfCurrentDevice();
  const bool is_double = args.dtype == DType::kFloat64;
  // Rows of ours are columns of the library's: it computes the transpose of the
  // product, b^T a^T.
  const Layout left(args.dtype, args.k, args.n, args.b, args.batch);
  const Layout right(args.dtype, args.m, args.k, args.a, args.batch);
  const Layout out(args.out_dtype, args.m, args.n, args.out, args.batch);
  cublasLtMatmulDesc_t product = nullptr;
  Check(cublasLtMatmulDescCreate(
            &product, is_double ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
            is_double ? CUDA_R_64F : CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  const auto set_transposed = [&](cublasLtMatmulDescAttributes_t attribute,
                                  bool transposed) {
    const cublasOperation_t operation = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    Check(cublasLtMatmulDescSetAttribute(product, attribute, &operation,
                                         sizeof(operation)),
          "cublasLtMatmulDescSetAttribute");
  };
  set_transposed(CUBLASLT_MATMUL_DESC_TRANSA, args.b.transposed);
  set_transposed(CUBLASLT_MATMUL_DESC_TRANSB, args.a.transposed);
  const cublasLtMatmulAlgo_t algorithm =
      Choose(library, args, product, left, right, out);
  const float factors[] = {static_cast<float>(args.alpha),
                           static_cast<float>(args.beta)};
  const void* const alpha =
      is_double ? static_cast<const void*>(&args.alpha) : &factors[0];
  const void* const beta =
      is_double ? static_cast<const void*>(&args.beta) : &factors[1];
  const cublasStatus_t status = cublasLtMatmul(
      library.handle, product, alpha, args.b.data, left.layout, args.a.data,
      right.layout, beta, args.out.data, out.layout, args.out.data, out.layout,
      &algorithm, args.workspace, static_cast<size_t>(kCudaGemmWorkspaceBytes),
      StreamOf(context));
  cublasLtMatmulDescDestroy(product);
  Check(status, "cublasLtMatmul");
}

}  // namespace crosshatch::internal
