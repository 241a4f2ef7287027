// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_LIST_NAMES_H_
#define CROSSHATCH_CHECKPOINT_LIST_NAMES_H_

#include <string>

#include "absl/types/span.h"

namespace crosshatch::checkpoint {

/// Returns e.g. "a, b, c and 7 more".
std::string ListNames(absl::Span<const std::string> names);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_LIST_NAMES_H_
