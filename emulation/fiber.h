// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_FIBER_H_
#define CROSSHATCH_EMULATION_FIBER_H_

/// \file
/// Functions that can be left in the middle and gone on with later: each has a
/// stack of its own, and they take turns on one thread of the process.
///
/// This uses fcontext, the layer beneath Boost.Context's public `fiber`, for
/// two reasons. AddressSanitizer has to be notified of every change of stacks
/// (fiber_switching.h), and the public class changes stacks within its
/// constructor and when a function ends, where a caller cannot do that. And
/// these extra changes, at least two for each function, are a large part of
/// the time where a function is one CUDA thread, often shorter than they are.

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <memory>

#include "crosshatch/emulation/fiber_switching.h"

namespace crosshatch::emulation {

/// A stack, on which one function after another runs.
/// \threadsafety used by the thread that made it only.
class Fiber {
 public:
  Fiber();
  /// Nothing runs on it: what was begun has ended.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Prepares `run(argument)`, which the next Resume begins. Nothing runs on
  /// the fiber.
  void Begin(void (*run)(void*), void* argument);
  /// Goes on until the function, or one that the turn was passed to, yields or
  /// ends.
  void Resume();
  /// \name Called by the function
  /// @{
  /// Returns to the Resume that this turn began with.
  void Yield();
  /// Passes the turn to `next`, on which something was begun, as if this
  /// yielded and that was resumed: one change of stacks in place of two.
  /// Inlined: a processor expects calls to return to where they came from, and
  /// errs in each return that follows a change of stacks.
  [[gnu::always_inline]] void PassTo(Fiber& next) {
    next.passer_ = this;
    switching_.BeforePassing(next.switching_, next.stack_);
    Arrive(boost::context::detail::jump_fcontext(next.context_, &next).fctx);
  }
  /// When the function ends, passes the turn to `next`.
  void PassAtEnd(Fiber& next) { successor_ = &next; }
  /// @}

 private:
  struct Entry;
  class Stacks;
  static const std::shared_ptr<Stacks>& StacksOfThread();

  /// On this fiber: the turn has come, from where `left` is to go on.
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
  std::byte* top_ = nullptr;   // Where it starts, downwards.
  std::byte* mark_ = nullptr;  // What it must not reach.
  void* context_ = nullptr;    // Where the function is to go on.
  void* resumer_ = nullptr;    // Where Resume is to go on.
  Fiber* passer_ = nullptr;    // Whose turn it was; none: that of Resume.
  Fiber* successor_ = nullptr;
  void (*run_)(void*) = nullptr;
  void* argument_ = nullptr;
  bool ended_ = true;
  FiberSwitching switching_;
};

}  // namespace crosshatch::emulation

#endif  // CROSSHATCH_EMULATION_FIBER_H_
