// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/mesh/parse_mesh_axes.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace crosshatch {

absl::StatusOr<std::vector<MeshAxis>> ParseMeshAxes(
    const std::string& text, absl::Span<const std::string> names,
    int64_t max_ranks) {
  const auto wrong = [&](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(text, ": ", what...));
  };
  std::vector<MeshAxis> axes;
  int64_t ranks = 1;
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  for (const std::string& part : parts) {
    const std::vector<std::string> halves = absl::StrSplit(part, ':');
    int size = 0;
    if (halves.size() != 2 || halves[0].empty() ||
        !absl::SimpleAtoi(halves[1], &size) || size < 1) {
      return wrong("\"", part, "\" is not AXIS:SIZE with a size of 1 or more");
    }
    const std::string& name = halves[0];
    if (!names.empty() &&
        std::find(names.begin(), names.end(), name) == names.end()) {
      return wrong("unknown axis \"", name, "\"; there are ",
                   absl::StrJoin(names, ", "));
    }
    for (const MeshAxis& axis : axes) {
      if (axis.name == name) {
        return wrong("the axis \"", name, "\" is given twice");
      }
    }
    ranks *= size;
    if (ranks > max_ranks) return wrong("more than ", max_ranks, " ranks");
    axes.push_back({name, size});
  }
  return axes;
}

}  // namespace crosshatch
