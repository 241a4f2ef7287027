// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace crosshatch::internal {

CheckFailure::CheckFailure(const char* file, int line, const char* expression) {
  message_ << file << ":" << line << ": check failed: " << expression << " ";
}

CheckFailure::~CheckFailure() {
  // One write, so that the messages of two failing rank threads do not mix.
  message_ << "\n";
  const std::string text = message_.str();
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
  std::abort();
}

}  // namespace crosshatch::internal
