// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_FIBER_H_
#define CROSSHATCH_EMULATION_FIBER_H_

/// \file
/// Functions that can be left in the middle and gone on with later: each has a
/// stack of its own, and they take turns on one thread of the process.

#include <cstddef>
#include <memory>

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
  /// Goes on until the function yields or ends.
  void Resume();
  /// Whether the function has ended.
  bool ended() const { return ended_; }
  /// Called by the function: returns to the Resume that this turn began with.
  void Yield();

 private:
  struct Switching;  // What sanitizers are told.
  struct Entry;
  class Stacks;
  static const std::shared_ptr<Stacks>& StacksOfThread();

  const std::shared_ptr<Stacks> stacks_;
  std::byte* const stack_;
  std::byte* top_ = nullptr;   // Where it starts, downwards.
  std::byte* mark_ = nullptr;  // What it must not reach.
  void* context_ = nullptr;    // Where the function is to go on.
  void* resumer_ = nullptr;    // Where Resume is to go on.
  void (*run_)(void*) = nullptr;
  void* argument_ = nullptr;
  bool ended_ = true;
  const std::unique_ptr<Switching> switching_;
};

}  // namespace crosshatch::emulation

#endif  // CROSSHATCH_EMULATION_FIBER_H_
