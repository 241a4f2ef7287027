// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_LAYERS_COMPARE_STEPS_H_
#define CROSSHATCH_NN_LAYERS_COMPARE_STEPS_H_

#include <cstdint>

#include "crosshatch/nn/module.h"

namespace crosshatch::nn {

/// Whether all ranks that share a distributed parameter of `root` have the same
/// seed and step: if they do not, their dropout of what they replicate differs.
/// Waits for these ranks, all of which call it; the error poisons the rank.
/// \returns whether there was anybody to ask.
bool CompareSteps(Module& root, uint64_t seed, uint64_t step);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_LAYERS_COMPARE_STEPS_H_
