// SPDX-License-Identifier: Apache-2.0
//
// The system's gRPC and Abseil are not instrumented: ThreadSanitizer does not
// see how they synchronize, and takes what they do between threads for races.
// It is to judge what this package's own code does.

extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() {
  return "ignore_noninstrumented_modules=1";
}
