// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_RESOLVED_PATH_H_
#define CROSSHATCH_EXAMPLES_RESOLVED_PATH_H_

#include <filesystem>
#include <string>

namespace crosshatch::examples {

/// Returns the file that opening `path` for writing would use: resolves links
/// as far as they exist, and dangling links to their target.
std::filesystem::path ResolvedPath(const std::string& path);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_RESOLVED_PATH_H_
