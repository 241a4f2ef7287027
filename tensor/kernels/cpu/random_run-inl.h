// SPDX-License-Identifier: Apache-2.0

/// \file
/// Random values of consecutive elements, in vectors if the target supports it,
/// with the bits of philox.h.

#if defined(CROSSHATCH_TENSOR_KERNELS_CPU_RANDOM_RUN_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef CROSSHATCH_TENSOR_KERNELS_CPU_RANDOM_RUN_INL_H_
#undef CROSSHATCH_TENSOR_KERNELS_CPU_RANDOM_RUN_INL_H_
#else
#define CROSSHATCH_TENSOR_KERNELS_CPU_RANDOM_RUN_INL_H_
#endif

#include <cstdint>

#include "crosshatch/tensor/kernels/kernel_table.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace crosshatch {
namespace HWY_NAMESPACE {

/// The parameters of all elements.
struct Generator {
  uint64_t key;
  uint64_t stream;
  RandomKind kind;
  float offset;
  float factor;
};

/// Consecutive elements.
void Generate(const Generator& g, uint64_t element, float* to, int64_t count);

/// `count` elements, `step` apart.
void GenerateRun(const Generator& g, uint64_t element, int64_t step, float* to,
                 int64_t count);

}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();

#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_RANDOM_RUN_INL_H_
