// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_START_THREAD_H_
#define CROSSHATCH_BASE_START_THREAD_H_

#include <string_view>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"

namespace crosshatch {

/// Starts a thread that runs `body`. All threads start here, because the
/// constructor of std::thread throws if the system has none left.
/// \param what names the thread in the error, e.g. "the thread of rank 3".
/// \error kResourceExhausted with the system's reason.
absl::StatusOr<std::thread> StartThread(std::string_view what,
                                        absl::AnyInvocable<void()> body);

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_START_THREAD_H_
