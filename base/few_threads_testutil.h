// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_FEW_THREADS_TESTUTIL_H_
#define CROSSHATCH_BASE_FEW_THREADS_TESTUTIL_H_

namespace crosshatch {

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

#endif  // CROSSHATCH_BASE_FEW_THREADS_TESTUTIL_H_
