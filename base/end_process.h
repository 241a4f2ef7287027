// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_END_PROCESS_H_
#define CROSSHATCH_BASE_END_PROCESS_H_

#include <string>

namespace crosshatch {

/// Ends this process with status 1 while its other threads are in any state:
/// takes no lock, runs no destructor and no exit handler. Prints `line` to
/// stderr first, cut to what a pipe takes in one write. If nobody reads stderr,
/// the process ends without the line after two seconds.
/// \param line without a newline at its end; nothing is printed if it is empty.
[[noreturn]] void EndProcess(std::string line);

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_END_PROCESS_H_
