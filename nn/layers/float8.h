// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_LAYERS_FLOAT8_H_
#define CROSSHATCH_NN_LAYERS_FLOAT8_H_

/// \file
/// Float8 training of linear layers, with dynamic scaling: docs/float8.md.

#include <functional>
#include <string>
#include <vector>

#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/module.h"

namespace crosshatch::nn {

struct Float8LinearConfig {
  Float8Recipe recipe = Float8Recipe::kTensorwise;
  /// Layers to leave as they are: patterns of module names (name_pattern.h).
  std::vector<std::string> skip = {};
};

/// What ConvertToFloat8Training did, by names of layers.
struct Float8Conversion {
  struct Skipped {
    std::string name;
    std::string reason;
  };
  std::vector<std::string> converted;
  std::vector<Skipped> skipped;

  /// Returns "28 linear layers in float8; skipped: lm_head (reason)".
  std::string ToString() const;
};

/// Makes the nn::Linear layers of `module` and all below multiply in float8.
/// Parameters stay in their own dtype. Call it before ParallelizeModule and
/// FullyShard.
///
/// Skips layers that match config.skip, whose features are not both multiples
/// of 16, or whose weight is tied with a parameter of another class, such as an
/// embedding.
Float8Conversion ConvertToFloat8Training(Module& module,
                                         const Float8LinearConfig& config = {});

/// Returns the weights of the linear layers of `module` and all below that are
/// converted with `recipe`, each once.
std::vector<Parameter*> Float8Weights(Module& module, Float8Recipe recipe);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_LAYERS_FLOAT8_H_
