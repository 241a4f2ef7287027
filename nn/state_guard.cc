// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/state_guard.h"

#include "crosshatch/base/status_macros.h"

namespace crosshatch::nn {
namespace {

absl::Status CheckGuards(Module& module, const char* what,
                         absl::Status (StateGuard::*check)(const char*) const) {
  for (const NamedModule& named : module.NamedModules()) {
    const auto* guard = static_cast<const StateGuard*>(
        named.module->attachment(StateGuard::kKey));
    if (guard != nullptr) CH_RETURN_IF_ERROR((guard->*check)(what));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckReadable(Module& module, const char* what) {
  return CheckGuards(module, what, &StateGuard::CheckReadable);
}

absl::Status CheckWritable(Module& module, const char* what) {
  return CheckGuards(module, what, &StateGuard::CheckWritable);
}

}  // namespace crosshatch::nn
