// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CPU_TARGETS_H_
#define CROSSHATCH_TENSOR_KERNELS_CPU_TARGETS_H_

/// \file
/// The instruction sets that kernels are compiled for: on x86 the baseline,
/// AVX2 and AVX-512; elsewhere all that Highway has. Each one multiplies
/// compile time and size, and the intermediate ones bring little. Included
/// before any header of Highway.

#if defined(__x86_64__)
// Bits 4 to 7: variants of AVX-512 (AVX3_SPR, AVX3_ZEN4, AVX3_DL) that only
// some versions of Highway name; 11 and 12: SSE4, SSSE3.
#define HWY_DISABLED_TARGETS ((0xFLL << 4) | (3LL << 11))
#endif

#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_TARGETS_H_
