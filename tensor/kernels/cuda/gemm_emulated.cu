// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "crosshatch/tensor/float8_bits.h"
#include "crosshatch/tensor/kernels/cuda/choice_cache.h"
#include "crosshatch/tensor/kernels/cuda/element.cuh"
#include "crosshatch/tensor/kernels/cuda/gemm.h"
#include "crosshatch/tensor/kernels/cuda/gemm_emulated.h"

namespace crosshatch::internal {
namespace {

struct Matrix {
  Matrix(const GemmLayout& layout, const void* data, bool transposed,
         int64_t number)
      : data(static_cast<const std::byte*>(data) +
             number * layout.batch_stride * SizeOf(layout.dtype)),
        dtype(layout.dtype),
        row_stride(transposed ? layout.leading : 1),
        col_stride(transposed ? 1 : layout.leading) {}

  template <typename C>
  C At(int64_t row, int64_t col) const {
    const int64_t index = row * row_stride + col * col_stride;
    if (dtype == DType::kFloat8E4M3) {
      return FromFloat8E4M3Bits(LoadElement<ByteBits>(data, dtype, index));
    }
    if (dtype == DType::kFloat8E5M2) {
      return FromFloat8E5M2Bits(LoadElement<ByteBits>(data, dtype, index));
    }
    return LoadElement<C>(data, dtype, index);
  }

  const std::byte* data;
  DType dtype;
  int64_t row_stride;
  int64_t col_stride;
};

/// Rounds to 10 bits of mantissa, ties away from zero, as cvt.rna.tf32 does.
float RoundedToTf32(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7F800000u) == 0x7F800000u) return value;
  return std::bit_cast<float>((bits + 0x1000u) & 0xFFFFE000u);
}

template <typename C>
C Operand(C value, GemmCompute compute) {
  if constexpr (sizeof(C) == 4) {
    if (compute == GemmCompute::kTf32) return RoundedToTf32(value);
  }
  return value;
}

// A product is a block of one thread, which iterates over the columns of out.
template <typename C>
__global__ void Product(GemmPlan plan, CudaGemmArgs args) {
  const int64_t number = blockIdx.x;
  const Matrix left(plan.left, args.b.data, plan.transpose_left, number);
  const Matrix right(plan.right, args.a.data, plan.transpose_right, number);
  const Matrix out(plan.out, args.out.data, false, number);
  auto* const to = const_cast<std::byte*>(out.data);
  const int64_t terms = plan.transpose_left ? plan.left.rows : plan.left.cols;
  const auto rows = static_cast<size_t>(plan.out.rows);
  std::vector<C> of_left(static_cast<size_t>(terms) * rows);
  for (int64_t t = 0; t < terms; ++t) {
    for (size_t r = 0; r < rows; ++r) {
      of_left[static_cast<size_t>(t) * rows + r] =
          Operand(left.At<C>(static_cast<int64_t>(r), t), plan.compute);
    }
  }
  std::vector<C> column(rows);
  for (int64_t c = 0; c < plan.out.cols; ++c) {
    column.assign(rows, C(0));
    for (int64_t t = 0; t < terms; ++t) {
      const C factor = Operand(right.At<C>(t, c), plan.compute);
      const C* const from = of_left.data() + static_cast<size_t>(t) * rows;
      for (size_t r = 0; r < rows; ++r) column[r] += factor * from[r];
    }
    for (size_t r = 0; r < rows; ++r) {
      const auto row = static_cast<int64_t>(r);
      C value = static_cast<C>(args.alpha) * column[r];
      if (plan.scales != GemmScales::kNone) {
        const bool by_row = plan.scales == GemmScales::kRow;
        value *= LoadElement<C>(args.scale_a, DType::kFloat32, by_row ? c : 0);
        value *=
            LoadElement<C>(args.scale_b, DType::kFloat32, by_row ? row : 0);
      }
      if (args.beta != 0) {
        value += static_cast<C>(args.beta) * out.At<C>(row, c);
      }
      if (args.bias != nullptr) {
        value += LoadElement<C>(args.bias, plan.out.dtype, row);
      }
      StoreElement(to, plan.out.dtype, row + c * plan.out.leading, value);
    }
  }
}

struct NoAlgorithm {};

ChoiceCache<GemmPlan, NoAlgorithm>& Algorithms() {
  static auto* const algorithms = new ChoiceCache<GemmPlan, NoAlgorithm>(10000);
  return *algorithms;
}

std::atomic<bool (*)(const GemmPlan&)> lacks_algorithm = nullptr;

}  // namespace

const int64_t kCudaGemmWorkspaceBytes = int64_t{32} << 10;

void SetPlansWithoutAlgorithm(bool (*lacks)(const GemmPlan&)) {
  lacks_algorithm = lacks;
}

int64_t CudaGemmChoices() { return Algorithms().made(); }

bool CudaGemm(const CudaGemmArgs& args, KernelContext& context) {
  const GemmPlan plan = PlanGemm(args);
  const auto lacks = lacks_algorithm.load();
  if (lacks != nullptr && lacks(plan)) return false;
  Algorithms().Get(plan, [] { return NoAlgorithm(); });
  const LaunchGeometry geometry = {.blocks = plan.batch, .threads = 1};
  if (plan.compute == GemmCompute::kFloat64) {
    LaunchKernel("gemm", &Product<double>, geometry, context, plan, args);
  } else {
    LaunchKernel("gemm", &Product<float>, geometry, context, plan, args);
  }
  return true;
}

}  // namespace crosshatch::internal
