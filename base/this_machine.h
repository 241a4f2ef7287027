// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_THIS_MACHINE_H_
#define CROSSHATCH_BASE_THIS_MACHINE_H_

#include <string>

namespace crosshatch {

/// The machine that the process runs on: its name, and in a line of its own
/// what tells two machines of one name apart, since each start of a system has
/// an id. Less than 110 bytes; "?" where a system does not say its name.
std::string ThisMachine();

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_THIS_MACHINE_H_
