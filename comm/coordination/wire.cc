// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/coordination/wire.h"

#include <grpc/support/log.h>

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace crosshatch::coordination {

void QuietenGrpc() {
  static const bool once = [] {
    if (std::getenv("GRPC_VERBOSITY") == nullptr) {
      gpr_set_log_function([](gpr_log_func_args*) {});
    }
    return true;
  }();
  static_cast<void>(once);
}

std::string AddressText(const std::string& host, int port) {
  if (absl::StartsWith(host, kAbstractSocket)) return host;
  return absl::StrCat(host, ":", port);
}

}  // namespace crosshatch::coordination
