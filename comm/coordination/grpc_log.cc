// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/coordination/grpc_log.h"

#include <grpc/support/log.h>

#include <cstdlib>

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

}  // namespace crosshatch::coordination
