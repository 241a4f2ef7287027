// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_MESH_PARSE_MESH_AXES_H_
#define CROSSHATCH_MESH_PARSE_MESH_AXES_H_

/// \file
/// ParseMeshAxes: parses a mesh from a command line.

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/mesh/mesh_layout.h"

namespace crosshatch {

/// Parses "fsdp:2,tp:2" to axes for InitDeviceMesh, in the order of the text.
/// \param names the allowed axes; empty: any name.
/// \param max_ranks the largest allowed product of the sizes.
/// \error kInvalidArgument naming `text` and the part of it that is not
///     AXIS:SIZE with a size of 1 or more, is not among `names`, is repeated,
///     or makes the mesh larger than `max_ranks`.
absl::StatusOr<std::vector<MeshAxis>> ParseMeshAxes(
    const std::string& text, absl::Span<const std::string> names = {},
    int64_t max_ranks = std::numeric_limits<int>::max());

}  // namespace crosshatch

#endif  // CROSSHATCH_MESH_PARSE_MESH_AXES_H_
