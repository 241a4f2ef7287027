// SPDX-License-Identifier: Apache-2.0
//
// The system's gRPC and Abseil are not instrumented: ThreadSanitizer does not
// see how they synchronize, and takes what they do between threads for races.
// It is to judge what this package's own code does.

extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libabsl_cord.so\n"
         "called_from_lib:libabsl_graphcycles_internal.so\n"
         "called_from_lib:libabsl_synchronization.so\n"
         "called_from_lib:libgpr.so\n"
         "called_from_lib:libgrpc++.so\n"
         "called_from_lib:libgrpc.so\n"
         "called_from_lib:libprotobuf.so\n";
}
