// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_UCX_RUN_UCX_H_
#define CROSSHATCH_COMM_UCX_RUN_UCX_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "crosshatch/comm/world.h"

namespace crosshatch::internal {

/// Runs RunMpi of `options.ucx`, which is not null.
/// \error kUnimplemented in a build without UCX (--//:ucx=false).
absl::Status RunUcx(absl::FunctionRef<absl::Status(World&)> fn,
                    const MpiOptions& options);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_UCX_RUN_UCX_H_
