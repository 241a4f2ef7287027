// SPDX-License-Identifier: Apache-2.0
//
// What a build without UCX has in the place of run_ucx.cc.

#include "crosshatch/comm/ucx/run_ucx.h"

namespace crosshatch::internal {

absl::Status RunUcx(absl::FunctionRef<absl::Status(World&)>,
                    const MpiOptions&) {
  return absl::UnimplementedError(
      "MpiOptions::ucx: this program was built without UCX (--//:ucx=false)");
}

}  // namespace crosshatch::internal
