// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_FEW_THREADS_TESTUTIL_H_
#define CROSSHATCH_BASE_FEW_THREADS_TESTUTIL_H_

namespace crosshatch {

/// While it lives, this process can start `threads` more threads at a time and
/// not one more: their stacks are large and its address space is limited.
/// \threadsafety for one thread of a test whose others start none.
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
