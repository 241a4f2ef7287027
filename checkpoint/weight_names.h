// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_WEIGHT_NAMES_H_
#define CROSSHATCH_CHECKPOINT_WEIGHT_NAMES_H_

/// \file
/// WeightNames: a table of the names of a model's parameters in weight files:
///
///     const WeightNames names = {.rules = {
///         {"blocks.*.attention.q.weight", "h.*.attn.qkv.weight", 0},
///         {"blocks.*.attention.k.weight", "h.*.attn.qkv.weight", 1},
///         {"blocks.*.attention.v.weight", "h.*.attn.qkv.weight", 2},
///         {"blocks.*", "h.*"},
///     }};

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "crosshatch/nn/models/llama_config.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch::checkpoint {

/// Renames parameters that match `parameter` to `stored`. A star matches any
/// text, as short as possible. The n-th star of `stored` is replaced by the
/// text that the n-th star of `parameter` matched.
struct WeightRule {
  std::string parameter;
  std::string stored;
  /// Several parameters with one stored name are parts of one tensor,
  /// concatenated along dim 0 in the order of their parts: 0, 1, and so on.
  int part = 0;
  /// Whether the tensor is stored transposed, like the weights [in, out] of
  /// GPT-2; its parts are then concatenated along dim 1 in the file. For
  /// matrices only: parameters of another ndim, such as biases, are stored as
  /// they are.
  bool transposed = false;
};

/// A table of names.
struct WeightNames {
  /// The first matching rule applies. A parameter that matches none keeps its
  /// name.
  std::vector<WeightRule> rules = {};
  /// Pairs of tensor names. Files may have the first in addition to the model's
  /// tensors if it equals the second, e.g. the head of a tied model. It is not
  /// written.
  std::vector<std::pair<std::string, std::string>> copies = {};
  /// Patterns of other tensors that files may have.
  std::vector<std::string> ignored = {};
};

/// Returns the names of nn::Llama in Hugging Face's files.
WeightNames LlamaNames(nn::LlamaFamily family);

/// Returns whether `name` matches `pattern`, whose stars match as above.
/// \param stars if not null, set to the texts that the stars matched.
bool MatchesStars(absl::string_view pattern, absl::string_view name,
                  std::vector<std::string>* stars);

/// The stored name of a parameter, and its part in that tensor.
struct StoredName {
  std::string name;
  int part = 0;
  bool transposed = false;
  /// Number of parts that rules give the tensor.
  int num_parts = 1;
};

/// Returns the stored name of `parameter`.
/// \error kInvalidArgument for a rule with more stars in `stored` than in
///     `parameter`.
absl::StatusOr<StoredName> StoredNameOf(const std::string& parameter,
                                        const WeightNames& names);

/// A tensor of a model or checkpoint.
struct NamedWeight {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape sizes;
};

/// A stored tensor and its parts.
/// \tparam Part an index of a NamedWeight, or a parameter.
template <typename Part>
struct Merged {
  std::string name;
  /// The shape of the concatenated parts. If `transposed`, the stored shape is
  /// its reverse.
  Shape sizes;
  bool transposed = false;
  /// Concatenated along dim 0.
  std::vector<Part> parts;

  Shape StoredSizes() const {
    return transposed ? Shape(sizes.rbegin(), sizes.rend()) : sizes;
  }
};
using MergedTensor = Merged<nn::NamedParameter>;

/// Returns the stored tensors of `weights`, in the order of their first parts.
/// \error kInvalidArgument, naming the tensor, for a rule with more stars in
///     `stored` than in `parameter`, or if its parts cannot be concatenated:
///     two are the same part, one that has a rule is missing, widths or dtypes
///     differ, or only some are transposed.
absl::StatusOr<std::vector<Merged<size_t>>> MergeWeights(
    absl::Span<const NamedWeight> weights, const WeightNames& names);
/// Returns the tensors in a model's files. Errors as MergeWeights.
absl::StatusOr<std::vector<MergedTensor>> MergeByName(
    absl::Span<const nn::NamedParameter> parameters, const WeightNames& names);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_WEIGHT_NAMES_H_
