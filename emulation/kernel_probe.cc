// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/emulation/kernel_probe.h"

#include <utility>

#include "crosshatch/base/check.h"

namespace crosshatch::emulation {

thread_local constinit KernelProbe* current_probe = nullptr;

KernelProbe::KernelProbe(KernelFault fault) : fault_(std::move(fault)) {
  CH_CHECK(current_probe == nullptr) << "two probes on one thread";
  current_probe = this;
}

KernelProbe::~KernelProbe() { current_probe = nullptr; }

bool IsBarrierLeftOut(const char* file, int line) {
  if (current_probe == nullptr) return false;
  BarrierPlace place = {file, line};
  const bool is_left_out =
      current_probe->fault_.kind == KernelFault::Kind::kNoBarrier &&
      current_probe->fault_.barrier == place;
  current_probe->barriers_.insert(std::move(place));
  return is_left_out;
}

}  // namespace crosshatch::emulation
