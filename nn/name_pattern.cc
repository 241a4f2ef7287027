// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/name_pattern.h"

#include <fnmatch.h>

#include <vector>

#include "absl/strings/str_split.h"
#include "absl/types/span.h"

namespace crosshatch::nn {
namespace {

using Parts = absl::Span<const std::string>;

bool Matches(Parts pattern, Parts name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == "**") {
    return Matches(pattern.subspan(1), name) ||
           (!name.empty() && Matches(pattern, name.subspan(1)));
  }
  return !name.empty() &&
         fnmatch(pattern[0].c_str(), name[0].c_str(), 0) == 0 &&
         Matches(pattern.subspan(1), name.subspan(1));
}

}  // namespace

bool MatchesName(absl::string_view pattern, absl::string_view name) {
  const std::vector<std::string> patterns = absl::StrSplit(pattern, '.');
  const std::vector<std::string> parts = absl::StrSplit(name, '.');
  return Matches(patterns, parts);
}

}  // namespace crosshatch::nn
