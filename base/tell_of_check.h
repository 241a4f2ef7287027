// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_TELL_OF_CHECK_H_
#define CROSSHATCH_BASE_TELL_OF_CHECK_H_

/// \file
/// What CheckTeller (check_teller.h) hands to check.cc, whose many users have
/// nothing to do with it.

#include <atomic>
#include <string>

namespace crosshatch::internal {

/// Where it is not null: prints the text, or has another process print it, and
/// says whether one has. Defined in check.cc.
extern std::atomic<bool (*)(const std::string& text)> tell_of_check;

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_BASE_TELL_OF_CHECK_H_
