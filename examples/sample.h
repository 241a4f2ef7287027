// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_SAMPLE_H_
#define CROSSHATCH_EXAMPLES_SAMPLE_H_

/// \file
/// Sample: draws tokens from a model one by one.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/nn/models/llama.h"

namespace crosshatch::examples {

struct SampleOptions {
  int64_t count = 0;  ///< Number of tokens to draw.
  /// Divides the logits; 0: takes the most likely token (the first of equals).
  double temperature = 1;
  int64_t top_k = 0;  ///< Draws from the top_k most likely tokens; 0: from all.
  uint64_t seed = 0;
};

/// Returns a token drawn by its logit.
/// \param uniform uniformly distributed in [0, 1); determines the token.
/// \pre logits are not empty and not NaN.
int32_t Draw(absl::Span<const float> logits, const SampleOptions& options,
             double uniform);

/// Returns tokens that follow `prompt`. Computes each token once: a KvCache
/// keeps keys and values, on each rank those of its own heads. All ranks must
/// call it with the same arguments; rank 0 draws for all.
/// \pre the prompt is not empty, and its tokens are in the vocabulary.
/// \error The rank's first error; kOutOfRange for NaN logits.
absl::StatusOr<std::vector<int32_t>> Sample(World& world, nn::Llama& model,
                                            absl::Span<const int32_t> prompt,
                                            const SampleOptions& options);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_SAMPLE_H_
