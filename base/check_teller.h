// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_CHECK_TELLER_H_
#define CROSSHATCH_BASE_CHECK_TELLER_H_

/// \file
/// Who prints a failed check (check.h) where this process is one of several
/// that run the same program and fail alike.

#include <functional>
#include <string>

namespace crosshatch {

/// While there is one, the first check that fails in this process is told to
/// `tell`: the text that would be printed, without a newline at its end. It
/// returns whether somebody has printed it, this process or another; else the
/// text is printed here as ever. The process ends after it.
/// \threadsafety one at a time in a process. `tell` is called on the thread
///     whose check has failed, which may be any; the destructor waits for it.
class CheckTeller {
 public:
  using Tell = std::function<bool(const std::string& text)>;

  explicit CheckTeller(Tell tell);
  ~CheckTeller();
  CheckTeller(const CheckTeller&) = delete;
  CheckTeller& operator=(const CheckTeller&) = delete;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_CHECK_TELLER_H_
