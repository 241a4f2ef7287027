// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/comm_origin.h"

#include "crosshatch/dtensor/dtensor_runtime.h"

namespace crosshatch {

const char* Name(CommOrigin::Kind kind) {
  switch (kind) {
    case CommOrigin::Kind::kOther:
      return "other";
    case CommOrigin::Kind::kExplicit:
      return "explicit";
    case CommOrigin::Kind::kImplicit:
      return "implicit";
    case CommOrigin::Kind::kOp:
      return "op";
  }
  return "unknown";
}

CommOrigin CurrentCommOrigin() {
  return DTensorRuntime::Current().comm_origin();
}

}  // namespace crosshatch
