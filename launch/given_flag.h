// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_GIVEN_FLAG_H_
#define CROSSHATCH_LAUNCH_GIVEN_FLAG_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/flags/marshalling.h"
#include "absl/strings/string_view.h"

namespace crosshatch {

/// A flag that knows whether it was given: what a default means, the same value
/// spelt out may contradict.
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

/// A switch that may have a number: --resume, --resume=100.
struct SwitchOrNumber {
  bool is_on = false;
  std::optional<int64_t> number;
};

inline bool AbslParseFlag(absl::string_view text, SwitchOrNumber* flag,
                          std::string* error) {
  *flag = {};
  int64_t number = 0;
  if (!absl::ParseFlag<int64_t>(text, &number, error)) {
    return absl::ParseFlag<bool>(text, &flag->is_on, error);
  }
  *flag = {.is_on = true, .number = number};
  return true;
}

inline std::string AbslUnparseFlag(const SwitchOrNumber& flag) {
  return flag.number.has_value() ? absl::UnparseFlag(*flag.number)
                                 : absl::UnparseFlag(flag.is_on);
}

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_GIVEN_FLAG_H_
