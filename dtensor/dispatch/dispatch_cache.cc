// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/dispatch/dispatch_cache.h"

#include <utility>

#include "crosshatch/dtensor/dispatch/register_op_rule.h"

namespace crosshatch {

DispatchCache& DispatchCache::Current() {
  return RankContext::Current().Get<DispatchCache>();
}

const OpRuleEntry* DispatchCache::UserRule(const OpInfo& info) const {
  auto found = rules_.find(&info);
  return found == rules_.end() ? nullptr : &found->second;
}

void DispatchCache::AddUserRule(const OpInfo& info, OpRuleEntry entry) {
  rules_[&info] = std::move(entry);
  // Plans of an earlier rule of the op are invalid.
  plans_.clear();
}

void RegisterOpRule(const OpInfo& info, OpRule rule, uint32_t plain_inputs) {
  DispatchCache::Current().AddUserRule(info, {std::move(rule), plain_inputs});
}

}  // namespace crosshatch
