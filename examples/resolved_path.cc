// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/resolved_path.h"

#include <system_error>

namespace crosshatch::examples {

namespace fs = std::filesystem;

std::filesystem::path ResolvedPath(const std::string& path) {
  std::error_code error;
  fs::path resolved = fs::absolute(path, error);
  // The system's limit on the number of links; it refuses cycles.
  for (int links = 0; links < 40 && !error; ++links) {
    resolved = fs::weakly_canonical(resolved, error);
    std::error_code absent;  // No link either.
    if (error || !fs::is_symlink(fs::symlink_status(resolved, absent))) break;
    resolved = resolved.parent_path() / fs::read_symlink(resolved, error);
  }
  if (error) resolved = fs::path(path).lexically_normal();
  return resolved.has_filename() ? resolved : resolved.parent_path();
}

}  // namespace crosshatch::examples
