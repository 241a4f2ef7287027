// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_IDLE_RUNTIME_H_
#define CROSSHATCH_EMULATION_IDLE_RUNTIME_H_

namespace crosshatch::emulation {

/// While it lives, kernels, copies and memsets of all streams are counted and
/// not done: what is left is the time that the host takes to issue them. What
/// is computed is undefined.
class IdleRuntime {
 public:
  IdleRuntime();
  ~IdleRuntime();
  IdleRuntime(const IdleRuntime&) = delete;
  IdleRuntime& operator=(const IdleRuntime&) = delete;
};

}  // namespace crosshatch::emulation

#endif  // CROSSHATCH_EMULATION_IDLE_RUNTIME_H_
