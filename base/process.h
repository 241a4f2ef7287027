// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_PROCESS_H_
#define CROSSHATCH_BASE_PROCESS_H_

#include <string>

#include "absl/status/status.h"

namespace crosshatch {

/// Ends this process with status 1 while its other threads are in any state:
/// takes no lock, runs no destructor and no exit handler. Prints `line` to
/// stderr first, cut to what a pipe takes in one write. If nobody reads stderr,
/// the process ends without the line after two seconds.
/// \param line without a newline at its end; nothing is printed if it is empty.
[[noreturn]] void EndProcess(std::string line);

/// Flushes stdout. A program calls it before it exits and fails with its error,
/// because the C library does not report output lost at exit. A closed pipe is
/// no error: its reader wanted no more.
/// \error the system's reason if some output could not be written.
absl::Status FlushStandardOutput();

/// Returns the name of the machine that the process runs on and, on a second
/// line, the id of its boot, which distinguishes machines with equal names.
/// Shorter than 110 bytes; the name is "?" if the system does not report one.
std::string ThisMachine();

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_PROCESS_H_
