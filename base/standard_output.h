// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_STANDARD_OUTPUT_H_
#define CROSSHATCH_BASE_STANDARD_OUTPUT_H_

#include "absl/status/status.h"

namespace crosshatch {

/// Flushes stdout. A program calls it before it exits and fails with its error,
/// because the C library does not report output lost at exit. A closed pipe is
/// no error: its reader wanted no more.
/// \error the system's reason if some output could not be written.
absl::Status FlushStandardOutput();

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_STANDARD_OUTPUT_H_
