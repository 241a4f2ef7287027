// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_MACHINE_MEMORY_H_
#define CROSSHATCH_EXAMPLES_MACHINE_MEMORY_H_

#include <cstdint>

namespace crosshatch::examples {

/// Bytes that a process may have here: memory and swap, less where a control
/// group or a limit of the shell says so.
int64_t MachineMemory();

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_MACHINE_MEMORY_H_
