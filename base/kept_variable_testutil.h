// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_KEPT_VARIABLE_TESTUTIL_H_
#define CROSSHATCH_BASE_KEPT_VARIABLE_TESTUTIL_H_

#include <cstdlib>
#include <optional>
#include <string>

namespace crosshatch {

/// Gives a variable of the environment, at its end, back the value that it had
/// at its start, or none: a test may set it meanwhile.
/// \threadsafety for one thread of a test whose others read no environment when
/// it starts or ends.
class KeptVariable {
 public:
  /// `name` outlives it.
  explicit KeptVariable(const char* name) : name_(name) {
    if (const char* const value = std::getenv(name)) value_ = value;
  }
  ~KeptVariable() {
    if (value_.has_value()) {
      setenv(name_, value_->c_str(), /*replace=*/1);
    } else {
      unsetenv(name_);
    }
  }
  KeptVariable(const KeptVariable&) = delete;
  KeptVariable& operator=(const KeptVariable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> value_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_KEPT_VARIABLE_TESTUTIL_H_
