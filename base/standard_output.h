// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_STANDARD_OUTPUT_H_
#define CROSSHATCH_BASE_STANDARD_OUTPUT_H_

#include "absl/status/status.h"

namespace crosshatch {

/// Writes out what was printed to stdout. A program calls it at its end, and
/// fails by its error: what is printed may be lost only then, and the C library
/// tells nobody. A pipe whose reader has left is no error: it wanted no more.
/// \error where anything that was printed could not be written, what the system
///     says of it, as far as that is known still.
absl::Status FlushStandardOutput();

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_STANDARD_OUTPUT_H_
