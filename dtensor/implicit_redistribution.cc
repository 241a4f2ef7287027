// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/implicit_redistribution.h"

#include "crosshatch/dtensor/dtensor_runtime.h"

namespace crosshatch {

ImplicitRedistributionScope::ImplicitRedistributionScope(
    ImplicitRedistribution mode)
    : previous_(DTensorRuntime::Current().implicit_redistribution()) {
  DTensorRuntime::Current().set_implicit_redistribution(mode);
}

ImplicitRedistributionScope::~ImplicitRedistributionScope() {
  DTensorRuntime::Current().set_implicit_redistribution(previous_);
}

}  // namespace crosshatch
