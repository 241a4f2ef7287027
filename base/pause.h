// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_PAUSE_H_
#define CROSSHATCH_BASE_PAUSE_H_

namespace crosshatch {

/// Hints to the processor that the thread spins.
inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_PAUSE_H_
