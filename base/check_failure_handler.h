// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_CHECK_FAILURE_HANDLER_H_
#define CROSSHATCH_BASE_CHECK_FAILURE_HANDLER_H_

/// \file
/// CheckFailureHandler: who prints a failed check (check.h) in a job of several
/// processes, which run one program and often fail in the same way.

#include <functional>
#include <string>

namespace crosshatch {

/// While it exists, the first failed check of this process is passed to
/// `handle` instead of stderr. The process aborts afterwards.
/// \threadsafety At most one exists in a process. `handle` is called on the
///     thread whose check failed. The destructor waits for that call.
class CheckFailureHandler {
 public:
  /// Receives the text of the failed check, without a trailing newline. Returns
  /// whether this process or another one has printed it; if not, it is printed
  /// here.
  using Handle = std::function<bool(const std::string& text)>;

  explicit CheckFailureHandler(Handle handle);
  ~CheckFailureHandler();
  CheckFailureHandler(const CheckFailureHandler&) = delete;
  CheckFailureHandler& operator=(const CheckFailureHandler&) = delete;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_CHECK_FAILURE_HANDLER_H_
