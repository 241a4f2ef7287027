// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/start_thread.h"

#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace crosshatch {

absl::StatusOr<std::thread> StartThread(std::string_view what,
                                        absl::AnyInvocable<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "cannot start ", std::string(what), ": ", error.code().message()));
  }
}

}  // namespace crosshatch
