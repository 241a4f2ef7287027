// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_COORDINATION_FAILURE_MESSAGE_H_
#define CROSSHATCH_COMM_COORDINATION_FAILURE_MESSAGE_H_

#include "crosshatch/comm/coordination/messages.pb.h"
#include "crosshatch/comm/job_failure.h"

namespace crosshatch::coordination {

/// \name Conversion of a FailureNotice to a message and back
/// @{
Failure ToMessage(const FailureNotice& notice);
/// A code of OK, which no failure has, becomes kUnknown.
FailureNotice ToNotice(const Failure& message);
/// @}

using ::crosshatch::ResultOf;

}  // namespace crosshatch::coordination

#endif  // CROSSHATCH_COMM_COORDINATION_FAILURE_MESSAGE_H_
