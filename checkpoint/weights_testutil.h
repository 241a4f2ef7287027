// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_WEIGHTS_TESTUTIL_H_
#define CROSSHATCH_CHECKPOINT_WEIGHTS_TESTUTIL_H_

#include <string>

namespace crosshatch::checkpoint {

/// Expects that the tensors of both Hugging Face directories have equal names,
/// sizes and, as float32, values. On the test's thread.
void ExpectSameWeights(const std::string& a, const std::string& b);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_WEIGHTS_TESTUTIL_H_
