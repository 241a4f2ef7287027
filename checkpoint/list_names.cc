// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/list_names.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"

namespace crosshatch::checkpoint {

std::string ListNames(absl::Span<const std::string> names) {
  constexpr size_t kMost = 3;
  const size_t shown = std::min(names.size(), kMost);
  std::string text = absl::StrJoin(names.subspan(0, shown), ", ");
  if (names.size() > shown) {
    absl::StrAppend(&text, " and ", names.size() - shown, " more");
  }
  return text;
}

}  // namespace crosshatch::checkpoint
