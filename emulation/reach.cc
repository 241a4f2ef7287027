// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/emulation/reach.h"

#include "crosshatch/base/check.h"

namespace crosshatch::emulation {

thread_local constinit Reach* current_reach = nullptr;

Reach::Reach(absl::FunctionRef<MemoryRange(uintptr_t)> find) : find_(find) {
  CH_CHECK(current_reach == nullptr) << "two reaches on one thread";
  current_reach = this;
}

Reach::~Reach() { current_reach = nullptr; }

bool Reach::Find(uintptr_t address, size_t bytes) {
  for (const MemoryRange& range : seen_) {
    if (!range.Holds(address, bytes)) continue;
    last_ = range;
    return true;
  }
  const MemoryRange range = find_(address);
  if (!range.Holds(address, bytes)) return false;
  last_ = range;
  seen_[next_] = range;
  next_ = (next_ + 1) % seen_.size();
  return true;
}

}  // namespace crosshatch::emulation
