// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_WEIGHT_NAMES_H_
#define CROSSHATCH_CHECKPOINT_WEIGHT_NAMES_H_

/// \file
/// What a model's parameters are called in files of weights, as a table:
///
///     const WeightNames names = {.rules = {
///         {"blocks.*.attention.q.weight", "h.*.attn.qkv.weight", 0},
///         {"blocks.*.attention.k.weight", "h.*.attn.qkv.weight", 1},
///         {"blocks.*.attention.v.weight", "h.*.attn.qkv.weight", 2},
///         {"blocks.*", "h.*"},
///     }};

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "crosshatch/nn/models/llama_config.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch::checkpoint {

/// Parameters that match `parameter` are called `stored`. A star stands for any
/// text, as little as will do; that in `stored` is what the star of the same
/// number matched.
struct WeightRule {
  std::string parameter;
  std::string stored;
  /// Several parameters of one stored name lie in one tensor, one below the
  /// other along dim 0, in the order of their parts: 0, 1, and so on.
  int part = 0;
  /// The tensor is stored as its transpose, as GPT-2's weights [in, out] are,
  /// and so parts lie side by side there. Matrices only: parameters of another
  /// number of dims (the biases beside them) are stored as they are.
  bool transposed = false;
};

struct WeightNames {
  /// The first that matches counts; a parameter that none matches has its own
  /// name.
  std::vector<WeightRule> rules = {};
  /// Tensors (first) that files may hold beyond the model's where they hold
  /// what the second does: the head of a tied model, say. They are not written.
  std::vector<std::pair<std::string, std::string>> copies = {};
  /// What files may hold beside: names with stars.
  std::vector<std::string> ignored = {};
};

/// The names of nn::Llama in Hugging Face's files, by its family.
WeightNames LlamaNames(nn::LlamaFamily family);

/// Whether `name` matches `pattern`, with stars as above; then `stars`, if not
/// null, are what they matched.
bool MatchesStars(absl::string_view pattern, absl::string_view name,
                  std::vector<std::string>* stars);

/// What files call a parameter, and which part of that tensor it is.
struct StoredName {
  std::string name;
  int part = 0;
  bool transposed = false;
};

/// \error kInvalidArgument for a rule with more stars in `stored` than in
///     `parameter`.
absl::StatusOr<StoredName> StoredNameOf(const std::string& parameter,
                                        const WeightNames& names);

/// A stored tensor and the parameters that it is made of.
struct MergedTensor {
  std::string name;
  /// Of the parameters together; those stored if it is transposed are reversed.
  Shape sizes;
  bool transposed = false;
  /// One below the other along dim 0.
  std::vector<nn::NamedParameter> parts;

  Shape StoredSizes() const {
    return transposed ? Shape(sizes.rbegin(), sizes.rend()) : sizes;
  }
};

/// The tensors that files of a model hold, in the order of their first
/// parameters.
/// \error kInvalidArgument naming the tensor, for a rule with more stars in
///     `stored` than in `parameter`, and for parameters that cannot lie in one
///     tensor: of the same part, of other widths or another dtype, with a part
///     missing, or some of them transposed and others not.
absl::StatusOr<std::vector<MergedTensor>> MergeByName(
    absl::Span<const nn::NamedParameter> parameters, const WeightNames& names);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_WEIGHT_NAMES_H_
