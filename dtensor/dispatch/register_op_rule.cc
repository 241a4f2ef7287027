// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/dispatch/register_op_rule.h"

#include <utility>

#include "crosshatch/dtensor/dispatch/dispatch_cache.h"

namespace crosshatch {

void RegisterOpRule(const OpInfo& info, OpRule rule, uint32_t plain_inputs) {
  DispatchCache::Current().AddUserRule(info, {std::move(rule), plain_inputs});
}

}  // namespace crosshatch
