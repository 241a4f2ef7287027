// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_PROCESS_SCOPES_TESTUTIL_H_
#define CROSSHATCH_BASE_PROCESS_SCOPES_TESTUTIL_H_

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

/// Limits this process to `threads` more threads at a time for the scope, by
/// large stacks and a limited address space.
/// \threadsafety No other thread may start threads meanwhile.
class FewThreadsScope {
 public:
  explicit FewThreadsScope(int threads);
  ~FewThreadsScope();
  FewThreadsScope(const FewThreadsScope&) = delete;
  FewThreadsScope& operator=(const FewThreadsScope&) = delete;

 private:
  unsigned long previous_stack_ = 0;
  unsigned long previous_limit_ = 0;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_PROCESS_SCOPES_TESTUTIL_H_
