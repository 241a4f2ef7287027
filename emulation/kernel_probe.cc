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

std::set<KernelPath> KernelProbe::paths() const {
  std::set<KernelPath> paths;
  for (const auto& [kernel, accesses] : accesses_) {
    for (int bit = 0; bit < 10; ++bit) {
      if ((accesses >> bit & 1u) != 0) {
        paths.insert({kernel, bit >= 5, size_t{1} << bit % 5});
      }
    }
  }
  return paths;
}

void BeginKernel(const void* code) {
  if (current_probe == nullptr) return;
  KernelProbe& probe = *current_probe;
  probe.kernel_ = reinterpret_cast<uintptr_t>(code);
  probe.accesses_of_kernel_ = &probe.accesses_[probe.kernel_];
}

void NoteKernel(const char* kernel) {
  if (current_probe == nullptr) return;
  KernelProbe& probe = *current_probe;
  LastAccesses& last = probe.kernels_[kernel];
  const LastAccesses now = {probe.loads_ - 1, probe.stores_ - 1};
  if (now.load > probe.before_.load) last.load = now.load;
  if (now.store > probe.before_.store) last.store = now.store;
  probe.before_ = now;
}

}  // namespace crosshatch::emulation
