// SPDX-License-Identifier: Apache-2.0
#include <cublasLt.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cuda/choice_cache.h"
#include "crosshatch/tensor/kernels/cuda/cuda_api.cuh"
#include "crosshatch/tensor/kernels/cuda/gemm.h"

namespace crosshatch::internal {
namespace {

/// The number of shapes whose algorithms are cached: more than a training job
/// has. It is a bound for lengths that differ from step to step.
constexpr size_t kMostAlgorithms = 10000;

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
    case DType::kFloat8E4M3:
      return CUDA_R_8F_E4M3;
    case DType::kFloat8E5M2:
      return CUDA_R_8F_E5M2;
    default:
      return CUDA_R_32F;
  }
}

cublasComputeType_t ComputeOf(GemmCompute compute) {
  switch (compute) {
    case GemmCompute::kFloat64:
      return CUBLAS_COMPUTE_64F;
    case GemmCompute::kTf32:
      return CUBLAS_COMPUTE_32F_FAST_TF32;
    case GemmCompute::kFloat32:
      break;
  }
  return CUBLAS_COMPUTE_32F;
}

/// The layout of a matrix, as the library's descriptor.
struct Layout {
  Layout(const GemmLayout& matrix, int64_t batch) {
    Check(cublasLtMatrixLayoutCreate(
              &layout, TypeOf(matrix.dtype), static_cast<uint64_t>(matrix.rows),
              static_cast<uint64_t>(matrix.cols), matrix.leading),
          "cublasLtMatrixLayoutCreate");
    const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute,
                         const auto& value) {
      Check(cublasLtMatrixLayoutSetAttribute(layout, attribute, &value,
                                             sizeof(value)),
            "cublasLtMatrixLayoutSetAttribute");
    };
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(batch));
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, matrix.batch_stride);
  }
  ~Layout() { cublasLtMatrixLayoutDestroy(layout); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;

  cublasLtMatrixLayout_t layout = nullptr;
};

/// The product, as the library's descriptor.
struct Product {
  explicit Product(const GemmPlan& plan)
      : left(plan.left, plan.batch),
        right(plan.right, plan.batch),
        out(plan.out, plan.batch) {
    const cublasComputeType_t compute = ComputeOf(plan.compute);
    Check(cublasLtMatmulDescCreate(
              &product, compute,
              plan.compute == GemmCompute::kFloat64 ? CUDA_R_64F : CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    SetTransposed(CUBLASLT_MATMUL_DESC_TRANSA, plan.transpose_left);
    SetTransposed(CUBLASLT_MATMUL_DESC_TRANSB, plan.transpose_right);
#if CUBLAS_VERSION >= 120900
    if (plan.scales == GemmScales::kRow) {
      Set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
          CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
      Set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE,
          CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
    }
#endif
    if (plan.bias_alignment == 0) return;
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, TypeOf(plan.out.dtype));
  }
  ~Product() { cublasLtMatmulDescDestroy(product); }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  template <typename Value>
  void Set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    Check(cublasLtMatmulDescSetAttribute(product, attribute, &value,
                                         sizeof(value)),
          "cublasLtMatmulDescSetAttribute");
  }
  void SetTransposed(cublasLtMatmulDescAttributes_t attribute,
                     bool is_transposed) {
    Set(attribute, is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  }

  const Layout left;
  const Layout right;
  const Layout out;
  cublasLtMatmulDesc_t product = nullptr;
};

/// The library's handle of a device, and the algorithms chosen so far.
struct Library {
  Library() { Check(cublasLtCreate(&handle), "cublasLtCreate"); }

  cublasLtHandle_t handle = nullptr;
  ChoiceCache<GemmPlan, std::optional<cublasLtMatmulAlgo_t>> algorithms{
      kMostAlgorithms};
};

Library& LibraryOfCurrentDevice() {
  static std::mutex mutex;
  static auto* const libraries = new std::map<int, Library>;
  int device = 0;
  CheckCuda(cudaGetDevice(&device), "cudaGetDevice");
  std::lock_guard<std::mutex> lock(mutex);
  return (*libraries)[device];
}

std::atomic<int64_t> choices = 0;

/// Returns nothing if the library has no algorithm.
std::optional<cublasLtMatmulAlgo_t> Choose(cublasLtHandle_t handle,
                                           const GemmPlan& plan,
                                           const Product& product) {
  choices.fetch_add(1, std::memory_order_relaxed);
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
      static_cast<uint64_t>(plan.workspace_bytes));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, plan.left.alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, plan.right.alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, plan.out.alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
      plan.bias_alignment == 0
          ? plan.out.alignment
          : std::min(plan.out.alignment, plan.bias_alignment));
  // No split sum whose order differs between runs.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE |
                            CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  cublasLtMatmulHeuristicResult_t result = {};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, product.product, product.left.layout, product.right.layout,
      product.out.layout, product.out.layout, preference, 1, &result, &found);
  cublasLtMatmulPreferenceDestroy(preference);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return std::nullopt;
  Check(status, "cublasLtMatmulAlgoGetHeuristic");
  if (found == 0) return std::nullopt;
  return result.algo;
}

}  // namespace

const int64_t kCudaGemmWorkspaceBytes = int64_t{8} << 20;

int64_t CudaGemmChoices() { return choices; }

bool CudaGemm(const CudaGemmArgs& args, KernelContext& context) {
#if CUBLAS_VERSION < 120900
  if (args.scales_by_row && IsFloat8(args.dtype)) return false;
#endif
  Library& library = LibraryOfCurrentDevice();
  const GemmPlan plan = PlanGemm(args);
  Product product(plan);
  if (args.bias != nullptr) {
    product.Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias);
  }
  if (plan.scales != GemmScales::kNone) {
    // The library's A is our b.
    product.Set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, args.scale_b);
    product.Set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, args.scale_a);
  }
  const std::optional<cublasLtMatmulAlgo_t> algorithm = library.algorithms.Get(
      plan, [&] { return Choose(library.handle, plan, product); });
  if (!algorithm.has_value()) return false;
  const bool is_double = plan.compute == GemmCompute::kFloat64;
  const float factors[] = {static_cast<float>(args.alpha),
                           static_cast<float>(args.beta)};
  const void* const alpha =
      is_double ? static_cast<const void*>(&args.alpha) : &factors[0];
  const void* const beta =
      is_double ? static_cast<const void*>(&args.beta) : &factors[1];
  Check(cublasLtMatmul(library.handle, product.product, alpha, args.b.data,
                       product.left.layout, args.a.data, product.right.layout,
                       beta, args.out.data, product.out.layout, args.out.data,
                       product.out.layout, &*algorithm, args.workspace,
                       static_cast<size_t>(args.workspace_bytes),
                       StreamOf(context)),
        "cublasLtMatmul");
  return true;
}

}  // namespace crosshatch::internal
