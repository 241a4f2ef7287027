// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_WEIGHTS_TESTUTIL_H_
#define CROSSHATCH_CHECKPOINT_WEIGHTS_TESTUTIL_H_

#include <string>

namespace crosshatch::checkpoint {

/// Expects that both Hugging Face directories have tensors with the same names,
/// sizes and, as float32, values. Call it on the test's thread.
void ExpectSameWeights(const std::string& a, const std::string& b);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_WEIGHTS_TESTUTIL_H_
