// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_COORDINATION_THIS_PROCESS_H_
#define CROSSHATCH_COMM_COORDINATION_THIS_PROCESS_H_

#include <string>

#include "crosshatch/comm/coordination/messages.pb.h"

namespace crosshatch::coordination {

/// What makes one build of a program different from another: the linker's build
/// id, as "build 1f00...", or, of a program without one, the size and time of
/// its file.
std::string ProgramId();

/// This process as `rank` of `size`.
Member ThisProcess(int rank, int size);

}  // namespace crosshatch::coordination

#endif  // CROSSHATCH_COMM_COORDINATION_THIS_PROCESS_H_
