// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/end_mpi.h"
#include "crosshatch/comm/mpi/mpi_process.h"
#include "crosshatch/comm/mpi/run_process.h"
#include "crosshatch/comm/ucx/run_ucx.h"
#include "crosshatch/comm/world.h"

namespace crosshatch {
absl::Status RunMpi(absl::FunctionRef<absl::Status(World&)> fn,
                    const MpiOptions& options) {
  if (options.ucx != nullptr) return internal::RunUcx(fn, options);
  CH_RETURN_IF_ERROR(internal::CheckOptions(options));
  CH_ASSIGN_OR_RETURN(internal::MpiProcess * process,
                      internal::MpiProcess::Get());
  // Waits for the processes of the job unless one is lost.
  CH_ASSIGN_OR_RETURN(std::unique_ptr<internal::Link> link,
                      process->Open(options.ranks, options.job.timeout,
                                    [&] { return internal::LossOf(options); }));
  if (link->rank() >= link->size()) {
    process->EndJob(options.job.timeout, /*had_part=*/false);
    process->Close(std::move(link));
    return absl::OkStatus();
  }
  const internal::ProcessResult result =
      internal::RunProcess(*link, fn, options);
  if (!result.ended_together) {
    process->Break(result.status);
    return result.status;
  }
  process->EndJob(options.job.timeout);
  // A failed job may have left messages that are never received.
  if (result.status.ok()) process->Close(std::move(link));
  return result.status;
}

void EndMpi() { internal::MpiProcess::End(); }

absl::StatusOr<std::vector<std::string>> ExchangeByMpi(
    const std::string& blob) {
  CH_ASSIGN_OR_RETURN(internal::MpiProcess * process,
                      internal::MpiProcess::Get());
  return process->Exchange(blob);
}

}  // namespace crosshatch
