// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_RESOLVED_PATH_H_
#define CROSSHATCH_EXAMPLES_RESOLVED_PATH_H_

#include <filesystem>
#include <string>

namespace crosshatch::examples {

/// Where `path` lies, links resolved as far as it exists, and a link to what
/// does not exist yet: who opens it for writing makes that.
std::filesystem::path ResolvedPath(const std::string& path);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_RESOLVED_PATH_H_
