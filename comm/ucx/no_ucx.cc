// SPDX-License-Identifier: Apache-2.0
//
// Replaces run_ucx.cc in a build without UCX.

#include "crosshatch/comm/ucx/run_ucx.h"

namespace crosshatch::internal {

absl::Status RunUcx(absl::FunctionRef<absl::Status(World&)>,
                    const MpiOptions&) {
  return absl::UnimplementedError(
      "MpiOptions::ucx: this program was built without UCX (--//:ucx=false)");
}

}  // namespace crosshatch::internal
