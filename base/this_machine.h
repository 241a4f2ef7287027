// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_THIS_MACHINE_H_
#define CROSSHATCH_BASE_THIS_MACHINE_H_

#include <string>

namespace crosshatch {

/// Returns the name of the machine that the process runs on and, on a second
/// line, the id of its boot, which distinguishes machines with equal names.
/// Shorter than 110 bytes; the name is "?" if the system does not report one.
std::string ThisMachine();

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_THIS_MACHINE_H_
