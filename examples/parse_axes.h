// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_PARSE_AXES_H_
#define CROSSHATCH_EXAMPLES_PARSE_AXES_H_

/// \file
/// ParseAxes: a mesh as people write it on a command line.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "crosshatch/mesh/mesh_layout.h"

namespace crosshatch::examples {

/// "fsdp:2,tp:2" as axes, in the order of the text.
/// \param flag begins the messages, before the text: "--mesh="; may be empty.
/// \param names of the axes that there are.
/// \error kInvalidArgument naming the part of the text that is no axis of
///     `names` with a size of 1 or more, or comes twice, or with which there
///     are more than `most_ranks`.
absl::StatusOr<std::vector<MeshAxis>> ParseAxes(
    const std::string& flag, const std::string& text,
    const std::vector<std::string>& names, int64_t most_ranks);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_PARSE_AXES_H_
