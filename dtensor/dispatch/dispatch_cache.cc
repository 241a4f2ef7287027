// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/dispatch/dispatch_cache.h"

#include <utility>

namespace crosshatch {
namespace {

// The address is the slot's key.
constexpr char kSlot = 0;

}  // namespace

DispatchCache& DispatchCache::Current() {
  auto& slot = RankContext::Current().extension(&kSlot);
  if (slot == nullptr) slot = std::make_unique<DispatchCache>();
  return static_cast<DispatchCache&>(*slot);
}

const OpRuleEntry* DispatchCache::UserRule(const OpInfo& info) const {
  auto found = rules_.find(&info);
  return found == rules_.end() ? nullptr : &found->second;
}

void DispatchCache::AddUserRule(const OpInfo& info, OpRuleEntry entry) {
  rules_[&info] = std::move(entry);
  // Plans made by an earlier rule of the op are void.
  plans_.clear();
}

}  // namespace crosshatch
