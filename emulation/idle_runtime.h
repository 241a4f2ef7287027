// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_IDLE_RUNTIME_H_
#define CROSSHATCH_EMULATION_IDLE_RUNTIME_H_

namespace crosshatch::emulation {

/// Makes all streams count kernels, copies and memsets instead of running them,
/// to measure the host's time of issuing. Results are undefined.
class IdleRuntime {
 public:
  IdleRuntime();
  ~IdleRuntime();
  IdleRuntime(const IdleRuntime&) = delete;
  IdleRuntime& operator=(const IdleRuntime&) = delete;
};

}  // namespace crosshatch::emulation

#endif  // CROSSHATCH_EMULATION_IDLE_RUNTIME_H_
