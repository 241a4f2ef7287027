// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_MACHINE_MEMORY_H_
#define CROSSHATCH_EXAMPLES_MACHINE_MEMORY_H_

#include <cstdint>

namespace crosshatch::examples {

/// Returns the memory in bytes that a process may use: memory and swap, or less
/// if a control group or resource limit says so.
int64_t MachineMemory();

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_MACHINE_MEMORY_H_
