// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/emulation/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <boost/context/detail/fcontext.hpp>

#include "crosshatch/base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace crosshatch::emulation {
namespace {

using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

// Frames are several times as large under AddressSanitizer. Pages that are not
// touched cost nothing.
constexpr size_t kStackBytes = size_t{256} << 10;

// The stacks of fibers start on different lines of the caches, of which all
// that start on a page's end would share a few.
constexpr size_t kLineBytes = 64;
constexpr size_t kFirstLines = 251;

size_t PageBytes() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

#if defined(__SANITIZE_ADDRESS__)

// AddressSanitizer is told of each change of stacks before and after it.
struct Fiber::Switching {
  void* fiber_stack = nullptr;    // Its frames that may outlive their calls.
  void* resumer_stack = nullptr;  // Those of the thread that resumes.
  const void* resumer_bottom = nullptr;
  size_t resumer_bytes = 0;

  void BeforeResume(const std::byte* stack) {
    __sanitizer_start_switch_fiber(&resumer_stack, stack, kStackBytes);
  }
  void AfterResume() {
    __sanitizer_finish_switch_fiber(resumer_stack, nullptr, nullptr);
  }
  void OnFiber() {
    __sanitizer_finish_switch_fiber(fiber_stack, &resumer_bottom,
                                    &resumer_bytes);
  }
  // What ends leaves its stack of frames to what begins next on the fiber: to
  // make one takes 40 us.
  void BeforeLeaving() {
    __sanitizer_start_switch_fiber(&fiber_stack, resumer_bottom, resumer_bytes);
  }
};

#elif defined(__SANITIZE_THREAD__)

// To ThreadSanitizer a fiber is a thread whose every turn is ordered.
struct Fiber::Switching {
  void* const fiber = __tsan_create_fiber(0);
  void* resumer = nullptr;

  ~Switching() { __tsan_destroy_fiber(fiber); }
  void BeforeResume(const std::byte*) {
    resumer = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fiber, 0);
  }
  void AfterResume() {}
  void OnFiber() {}
  void BeforeLeaving() { __tsan_switch_to_fiber(resumer, 0); }
};

#else

struct Fiber::Switching {
  void BeforeResume(const std::byte*) {}
  void AfterResume() {}
  void OnFiber() {}
  void BeforeLeaving() {}
};

#endif

struct Fiber::Entry {
  // It never returns, and so must not have a frame to give back.
  [[gnu::no_sanitize_address]] static void Run(transfer_t from) {
    auto* const self = static_cast<Fiber*>(from.data);
    self->resumer_ = from.fctx;
    self->switching_->OnFiber();
    self->run_(self->argument_);
    self->ended_ = true;
    self->switching_->BeforeLeaving();
    jump_fcontext(self->resumer_, nullptr);
  }
};

Fiber::Fiber() : switching_(std::make_unique<Switching>()) {
  void* const memory =
      mmap(nullptr, PageBytes() + kStackBytes, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CH_CHECK(memory != MAP_FAILED) << "no memory for the stack of a fiber";
  CH_CHECK_EQ(mprotect(memory, PageBytes(), PROT_NONE), 0);
  stack_ = static_cast<std::byte*>(memory) + PageBytes();
  static thread_local size_t fibers = 0;
  // Nine lines are what a turn touches at least.
  top_ = stack_ + kStackBytes - 9 * ++fibers % kFirstLines * kLineBytes;
}

Fiber::~Fiber() {
  CH_CHECK(ended_) << "a fiber goes while its function is in the middle";
  munmap(stack_ - PageBytes(), PageBytes() + kStackBytes);
}

void Fiber::Begin(void (*run)(void*), void* argument) {
  CH_CHECK(ended_) << "a fiber begins while its function is in the middle";
  run_ = run;
  argument_ = argument;
  ended_ = false;
  context_ =
      make_fcontext(top_, static_cast<size_t>(top_ - stack_), &Entry::Run);
}

void Fiber::Resume() {
  switching_->BeforeResume(stack_);
  const transfer_t from = jump_fcontext(context_, this);
  switching_->AfterResume();
  context_ = from.fctx;
}

void Fiber::Yield() {
  switching_->BeforeLeaving();
  const transfer_t from = jump_fcontext(resumer_, nullptr);
  switching_->OnFiber();
  resumer_ = from.fctx;
}

}  // namespace crosshatch::emulation
