// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_KEPT_VARIABLE_TESTUTIL_H_
#define CROSSHATCH_BASE_KEPT_VARIABLE_TESTUTIL_H_

#include <cstdlib>
#include <optional>
#include <string>

namespace crosshatch {

/// Restores an environment variable at the end of the scope, so that a test may
/// set it meanwhile.
/// \threadsafety No other thread may read the environment when it starts or
///     ends.
class KeptVariable {
 public:
  /// \param name outlives the scope.
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
