// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_SAMPLE_H_
#define CROSSHATCH_EXAMPLES_SAMPLE_H_

/// \file
/// Tokens drawn from a model, one after the other.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/nn/models/llama.h"

namespace crosshatch::examples {

struct SampleOptions {
  int64_t count = 0;  ///< Tokens to draw.
  /// Divides the logits; 0: always the likeliest token, of equals the first.
  double temperature = 1;
  int64_t top_k = 0;  ///< Draw from the likeliest so many; 0: from all.
  uint64_t seed = 0;
};

/// A token drawn by its logit.
/// \param uniform even in [0, 1): what is drawn follows from it.
/// \pre logits are not empty and not NaN.
int32_t Draw(absl::Span<const float> logits, const SampleOptions& options,
             double uniform);

/// The tokens that follow `prompt`. Each is computed once: keys and values of
/// those before are kept, on each rank those of its own heads (KvCache). Called
/// by all ranks with the same arguments; rank 0 draws for all.
/// \pre the prompt is not empty, and its tokens are in the vocabulary.
/// \error the rank's first error; kOutOfRange for logits that are NaN.
absl::StatusOr<std::vector<int32_t>> Sample(World& world, nn::Llama& model,
                                            absl::Span<const int32_t> prompt,
                                            const SampleOptions& options);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_SAMPLE_H_
