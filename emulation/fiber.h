// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_FIBER_H_
#define CROSSHATCH_EMULATION_FIBER_H_

/// \file
/// Functions that can be suspended and resumed. Each has its own stack, and
/// they take turns on one thread of the process.
///
/// This uses fcontext, the layer beneath Boost.Context's public `fiber`, for
/// two reasons. First, AddressSanitizer needs a notification of every stack
/// switch (fiber_switching.h). The public class switches stacks in its
/// constructor and when a function ends, where a caller cannot notify. Second,
/// these two extra switches for each function are expensive: a CUDA thread
/// often takes less time than they do.

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <memory>

#include "crosshatch/emulation/fiber_switching.h"

namespace crosshatch::emulation {

/// A stack that runs one function after another.
/// \threadsafety Used only by the thread that created it.
class Fiber {
 public:
  Fiber();
  /// \pre No function is suspended on it.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Prepares `run(argument)`, which the next Resume begins.
  /// \pre The fiber runs nothing.
  void Begin(void (*run)(void*), void* argument);
  /// Continues until the function, or one that it passed the turn to, yields or
  /// ends.
  void Resume();
  /// \name Called by the function
  /// @{
  /// Returns to the Resume that began this turn.
  void Yield();
  /// Passes the turn to `next`, which has been begun. Equals a Yield and a
  /// Resume of `next`, with one stack switch instead of two. Inlined, because
  /// the processor mispredicts each return that follows a stack switch.
  [[gnu::always_inline]] void PassTo(Fiber& next) {
    next.passer_ = this;
    switching_.BeforePassing(next.switching_, next.stack_);
    Arrive(boost::context::detail::jump_fcontext(next.context_, &next).fctx);
  }
  /// Passes the turn to `next` when the function ends.
  void PassAtEnd(Fiber& next) { successor_ = &next; }
  /// @}

 private:
  struct Entry;
  class Stacks;
  static const std::shared_ptr<Stacks>& StacksOfThread();

  /// Runs on this fiber at the start of a turn. `left` is the context that
  /// passed it.
  [[gnu::always_inline]] void Arrive(void* left) {
    if (passer_ == nullptr) {
      resumer_ = left;
      switching_.OnFiber(nullptr);
    } else {
      passer_->context_ = left;
      resumer_ = passer_->resumer_;
      switching_.OnFiber(&passer_->switching_);
    }
  }

  const std::shared_ptr<Stacks> stacks_;
  std::byte* const stack_;
  std::byte* top_ = nullptr;   // The start of the stack, which grows downwards.
  std::byte* mark_ = nullptr;  // The limit of the stack.
  void* context_ = nullptr;    // The context to continue the function.
  void* resumer_ = nullptr;    // The context to continue Resume.
  Fiber* passer_ = nullptr;  // The fiber that passed the turn; null for Resume.
  Fiber* successor_ = nullptr;
  void (*run_)(void*) = nullptr;
  void* argument_ = nullptr;
  bool ended_ = true;
  FiberSwitching switching_;
};

}  // namespace crosshatch::emulation

#endif  // CROSSHATCH_EMULATION_FIBER_H_
