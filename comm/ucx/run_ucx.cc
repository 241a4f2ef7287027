// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/ucx/run_ucx.h"

#include <memory>
#include <utility>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/mpi/run_process.h"
#include "crosshatch/comm/ucx/ucx_link.h"

namespace crosshatch::internal {

absl::Status RunUcx(absl::FunctionRef<absl::Status(World&)> fn,
                    const MpiOptions& options) {
  CH_RETURN_IF_ERROR(CheckOptions(options));
  CH_ASSIGN_OR_RETURN(
      std::unique_ptr<Link> link,
      OpenUcxLink(*options.ucx, options.ranks, options.job.timeout,
                  [&] { return LossOf(options); }));
  if (link->rank() >= link->size()) return absl::OkStatus();
  const ProcessResult result = RunProcess(*link, fn, options);
  if (result.ended_together) CloseUcxLink(std::move(link), options.job.timeout);
  return result.status;
}

}  // namespace crosshatch::internal
