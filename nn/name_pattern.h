// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_NAME_PATTERN_H_
#define CROSSHATCH_NN_NAME_PATTERN_H_

/// \file
/// Patterns of the names of modules and parameters.

#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "crosshatch/nn/parameter.h"

namespace crosshatch::nn {

/// Returns whether `name` matches `pattern`. The parts between dots match like
/// file names ("layers.*.attention.w[qkv]"); "**" matches any number of parts
/// ("**.bias"). The empty pattern matches the empty name.
bool MatchesName(absl::string_view pattern, absl::string_view name);

/// Returns whether a parameter's full name matches `pattern`. As the predicate
/// of a parameter group it lets errors print the pattern.
class NameMatches {
 public:
  explicit NameMatches(std::string pattern) : pattern_(std::move(pattern)) {}

  bool operator()(const Parameter& parameter) const {
    return MatchesName(pattern_, parameter.name());
  }
  const std::string& pattern() const { return pattern_; }

 private:
  std::string pattern_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_NAME_PATTERN_H_
