// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_COORDINATION_THIS_PROCESS_H_
#define CROSSHATCH_COMM_COORDINATION_THIS_PROCESS_H_

#include <string>

#include "crosshatch/comm/coordination/messages.pb.h"

namespace crosshatch::coordination {

/// Returns the id of this build of the program: the linker's build id, as
/// "build 1f00...", or, if there is none, the size and time of its file.
std::string ProgramId();

/// Returns this process as `rank` of `size`.
Member ThisProcess(int rank, int size);

}  // namespace crosshatch::coordination

#endif  // CROSSHATCH_COMM_COORDINATION_THIS_PROCESS_H_
