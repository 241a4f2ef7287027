// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_NAME_PATTERN_H_
#define CROSSHATCH_NN_NAME_PATTERN_H_

/// \file
/// Patterns of the names of modules and parameters.

#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "crosshatch/nn/parameter.h"

namespace crosshatch::nn {

/// Whether `name` is of `pattern`: part by part, between the dots, as names of
/// files match ("layers.*.attention.w[qkv]"); "**" stands for any number of
/// parts ("**.bias"). The empty pattern is the empty name.
bool MatchesName(absl::string_view pattern, absl::string_view name);

/// Whether a parameter's full name is of `pattern`.
std::function<bool(const Parameter&)> NameMatches(std::string pattern);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_NAME_PATTERN_H_
