// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_MESH_PARSE_MESH_AXES_H_
#define CROSSHATCH_MESH_PARSE_MESH_AXES_H_

/// \file
/// ParseMeshAxes: a mesh as people write it on a command line.

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/mesh/mesh_layout.h"

namespace crosshatch {

/// Parses "fsdp:2,tp:2" to axes for InitDeviceMesh, in the order of the text.
/// \param names the axes that the program knows; empty: any name will do.
/// \param most_ranks the largest product of the sizes.
/// \error kInvalidArgument naming `text` and the part of it that is no
///     AXIS:SIZE with a size of 1 or more, that is not among `names`, that
///     comes twice, or with which there are more than `most_ranks` ranks.
absl::StatusOr<std::vector<MeshAxis>> ParseMeshAxes(
    const std::string& text, absl::Span<const std::string> names = {},
    int64_t most_ranks = std::numeric_limits<int>::max());

}  // namespace crosshatch

#endif  // CROSSHATCH_MESH_PARSE_MESH_AXES_H_
