// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_WEIGHTS_TESTUTIL_H_
#define CROSSHATCH_CHECKPOINT_WEIGHTS_TESTUTIL_H_

#include <string>
#include <utility>
#include <vector>

#include "crosshatch/checkpoint/safetensors.h"
#include "crosshatch/checkpoint/weight_files.h"

namespace crosshatch::checkpoint {

/// Writes a safetensors file with these tensors and their elements. Call it on
/// the test's thread.
void WriteSafetensors(
    const std::string& path,
    const std::vector<std::pair<TensorInfo, const void*>>& tensors);

/// Returns the elements of a tensor as float32. Call it on the test's thread.
std::vector<float> ValuesOf(const StoredTensor& stored);

/// Expects that both Hugging Face directories have tensors with the same names,
/// sizes and, as float32, values. Call it on the test's thread.
void ExpectSameWeights(const std::string& a, const std::string& b);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_WEIGHTS_TESTUTIL_H_
