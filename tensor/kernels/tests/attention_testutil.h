// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_TESTS_ATTENTION_TESTUTIL_H_
#define CROSSHATCH_TENSOR_KERNELS_TESTS_ATTENTION_TESTUTIL_H_

/// \file
/// One call of attention against its definition.

#include <cstdint>
#include <vector>

#include "crosshatch/tensor/dtype.h"

namespace crosshatch::kernel_test {

/// A call of attention, forward and backward, with random inputs.
struct AttentionCase {
  int64_t batch, q_len, kv_len, q_heads, kv_heads, dim;
  DType dtype = kFloat32;
  bool causal = true;
  bool heads_first = false;  ///< Memory order [B, H, T, D].
  double size = 1;           ///< Of the inputs.
  int64_t window = 0;
  /// The dims of a mask, of [batch, q_heads, q_len, kv_len]: bit 0 is the
  /// first. A bool mask allows three of four keys.
  uint32_t mask_dims = 0;
  DType mask_dtype = kBool;
  bool has_mask = false;
  /// Lengths of packed documents, in queries and keys alike; the rest attends
  /// to nothing. Every other batch row has them in reverse.
  std::vector<int64_t> documents = {};
  bool slopes = false;
  double dropout = 0;
  /// The number of first keys with this value in the mask.
  int64_t low_keys = 0;
  double low = 0;
};

/// Runs the kernels under test, forward and backward, in all ways of the
/// device, and expects the reference's results within derived bounds.
void TestAttention(const AttentionCase& c);

}  // namespace crosshatch::kernel_test

#endif  // CROSSHATCH_TENSOR_KERNELS_TESTS_ATTENTION_TESTUTIL_H_
