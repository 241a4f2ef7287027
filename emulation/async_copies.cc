// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/emulation/async_copies.h"

#include <cstddef>
#include <cstring>

namespace crosshatch::emulation {

void AsyncCopies::Start(void* to, const Data& data) {
  copies_.push_back({to, data});
  std::memset(to, 0xFF, kBytes);
}

void AsyncCopies::Commit() { ends_.push_back(copies_.size()); }

void AsyncCopies::Wait(size_t groups) {
  if (ends_.size() <= groups) return;
  const size_t waited = ends_.size() - groups;
  const size_t end = ends_[waited - 1];
  for (size_t i = 0; i < end; ++i) {
    std::memcpy(copies_[i].to, copies_[i].data.data(), kBytes);
  }
  copies_.erase(copies_.begin(),
                copies_.begin() + static_cast<std::ptrdiff_t>(end));
  ends_.erase(ends_.begin(),
              ends_.begin() + static_cast<std::ptrdiff_t>(waited));
  for (size_t& one : ends_) one -= end;
}

bool AsyncCopies::Drop() {
  const bool any = !copies_.empty();
  copies_.clear();
  ends_.clear();
  return any;
}

}  // namespace crosshatch::emulation
