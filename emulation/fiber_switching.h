// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_FIBER_SWITCHING_H_
#define CROSSHATCH_EMULATION_FIBER_SWITCHING_H_

/// \file
/// Notifies sanitizers before and after each stack switch. Without a sanitizer
/// it does nothing.

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace crosshatch::emulation {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// Sanitizers enlarge frames several times.
inline constexpr size_t kStackBytes = size_t{256} << 10;
#else
inline constexpr size_t kStackBytes = size_t{32} << 10;
#endif

/// The sanitizer's state of one fiber, whose stack has kStackBytes at `stack`.
/// BeforeResume and AfterResume run on the resumer's stack, the other functions
/// on the fiber's.
#if defined(__SANITIZE_ADDRESS__)

class FiberSwitching {
 public:
  void BeforeResume(const std::byte* stack) {
    __sanitizer_start_switch_fiber(&resumer_stack_, stack, kStackBytes);
  }
  void AfterResume() {
    __sanitizer_finish_switch_fiber(resumer_stack_, nullptr, nullptr);
  }
  /// \param passer the fiber that passed the turn; null for the resumer
  void OnFiber(const FiberSwitching* passer) {
    __sanitizer_finish_switch_fiber(fiber_stack_, &resumer_bottom_,
                                    &resumer_bytes_);
    if (passer == nullptr) return;
    resumer_bottom_ = passer->resumer_bottom_;
    resumer_bytes_ = passer->resumer_bytes_;
  }
  // Keeps the fake stack of the ended function for the next one, because a new
  // one takes 40 us.
  void BeforeLeaving() {
    __sanitizer_start_switch_fiber(&fiber_stack_, resumer_bottom_,
                                   resumer_bytes_);
  }
  void BeforePassing(const FiberSwitching& /*next*/, const std::byte* stack) {
    __sanitizer_start_switch_fiber(&fiber_stack_, stack, kStackBytes);
  }

 private:
  void* fiber_stack_ = nullptr;    // The fiber's fake stack.
  void* resumer_stack_ = nullptr;  // The resuming thread's.
  const void* resumer_bottom_ = nullptr;
  size_t resumer_bytes_ = 0;
};

#elif defined(__SANITIZE_THREAD__)

// ThreadSanitizer models a fiber as a thread whose turns are ordered.
class FiberSwitching {
 public:
  FiberSwitching() = default;
  ~FiberSwitching() { __tsan_destroy_fiber(fiber_); }
  FiberSwitching(const FiberSwitching&) = delete;
  FiberSwitching& operator=(const FiberSwitching&) = delete;

  void BeforeResume(const std::byte* /*stack*/) {
    resumer_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fiber_, 0);
  }
  void AfterResume() {}
  /// \param passer the fiber that passed the turn; null for the resumer
  void OnFiber(const FiberSwitching* passer) {
    if (passer != nullptr) resumer_ = passer->resumer_;
  }
  void BeforeLeaving() { __tsan_switch_to_fiber(resumer_, 0); }
  void BeforePassing(const FiberSwitching& next, const std::byte* /*stack*/) {
    __tsan_switch_to_fiber(next.fiber_, 0);
  }

 private:
  void* const fiber_ = __tsan_create_fiber(0);
  void* resumer_ = nullptr;
};

#else

class FiberSwitching {
 public:
  void BeforeResume(const std::byte* /*stack*/) {}
  void AfterResume() {}
  /// \param passer the fiber that passed the turn; null for the resumer
  void OnFiber(const FiberSwitching* /*passer*/) {}
  void BeforeLeaving() {}
  void BeforePassing(const FiberSwitching& /*next*/,
                     const std::byte* /*stack*/) {}
};

#endif

}  // namespace crosshatch::emulation

#endif  // CROSSHATCH_EMULATION_FIBER_SWITCHING_H_
