// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/process_scopes_testutil.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <thread>

#include "crosshatch/base/check.h"

namespace crosshatch {
namespace {

// Far above a thread's other memory, sanitizers included. Far below any
// machine's memory, because the system may refuse a larger stack.
constexpr uint64_t kStack = uint64_t{1} << 30;
constexpr uint64_t kOther = kStack / 2;

uint64_t AddressSpaceInUse() {
  std::ifstream file("/proc/self/statm");
  uint64_t pages = 0;
  CH_CHECK(file >> pages) << "/proc/self/statm cannot be read";
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

void SetDefaultStack(uint64_t bytes) {
  pthread_attr_t attributes;
  CH_CHECK_EQ(pthread_attr_init(&attributes), 0);
  CH_CHECK_EQ(pthread_attr_setstacksize(&attributes, bytes), 0);
  CH_CHECK_EQ(pthread_setattr_default_np(&attributes), 0);
  pthread_attr_destroy(&attributes);
}

uint64_t DefaultStack() {
  pthread_attr_t attributes;
  size_t bytes = 0;
  CH_CHECK_EQ(pthread_getattr_default_np(&attributes), 0);
  CH_CHECK_EQ(pthread_attr_getstacksize(&attributes, &bytes), 0);
  pthread_attr_destroy(&attributes);
  return bytes;
}

void SetAddressSpace(uint64_t bytes) {
  rlimit limit;
  CH_CHECK_EQ(getrlimit(RLIMIT_AS, &limit), 0);
  limit.rlim_cur = bytes;
  CH_CHECK_EQ(setrlimit(RLIMIT_AS, &limit), 0);
}

}  // namespace

FewThreadsScope::FewThreadsScope(int threads)
    : previous_stack_(DefaultStack()) {
  // ThreadSanitizer starts a thread of its own with the first of a process. It
  // must not count as one of `threads`.
  std::thread([] {}).join();
  rlimit limit;
  CH_CHECK_EQ(getrlimit(RLIMIT_AS, &limit), 0);
  previous_limit_ = limit.rlim_cur;
  SetDefaultStack(kStack);
  SetAddressSpace(AddressSpaceInUse() +
                  static_cast<uint64_t>(threads) * kStack + kOther);
}

FewThreadsScope::~FewThreadsScope() {
  SetAddressSpace(previous_limit_);
  SetDefaultStack(previous_stack_);
}

}  // namespace crosshatch
