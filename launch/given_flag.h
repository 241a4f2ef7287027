// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_GIVEN_FLAG_H_
#define CROSSHATCH_LAUNCH_GIVEN_FLAG_H_

#include <string>

#include "absl/flags/marshalling.h"
#include "absl/strings/string_view.h"

namespace crosshatch {

/// The value of an Abseil flag, and whether the command line set it. An
/// explicit default may conflict with other flags where an implicit one does
/// not.
template <typename T>
struct GivenFlag {
  T value{};
  bool is_given = false;
};

template <typename T>
bool AbslParseFlag(absl::string_view text, GivenFlag<T>* flag,
                   std::string* error) {
  flag->is_given = true;
  return absl::ParseFlag<T>(text, &flag->value, error);
}

template <typename T>
std::string AbslUnparseFlag(const GivenFlag<T>& flag) {
  return absl::UnparseFlag<T>(flag.value);
}

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_GIVEN_FLAG_H_
