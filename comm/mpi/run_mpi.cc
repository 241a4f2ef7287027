// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/mpi/mpi_process.h"
#include "crosshatch/comm/mpi/run_process.h"
#include "crosshatch/comm/world.h"

namespace crosshatch {

absl::Status RunMpi(absl::FunctionRef<absl::Status(World&)> fn,
                    const MpiOptions& options) {
  CH_RETURN_IF_ERROR(internal::CheckOptions(options));
  CH_ASSIGN_OR_RETURN(internal::MpiProcess * process,
                      internal::MpiProcess::Get(options.join));
  CH_ASSIGN_OR_RETURN(std::unique_ptr<internal::Link> link,
                      process->Open(options.timeout));
  const internal::ProcessResult result =
      internal::RunProcess(*link, fn, options);
  if (!result.ended_together) {
    process->Break(result.status);
    return result.status;
  }
  process->EndJob();
  // A failed job may have left messages that nobody takes.
  if (result.status.ok()) process->Close(std::move(link));
  return result.status;
}

absl::StatusOr<std::vector<std::string>> ExchangeByMpi(const std::string& blob,
                                                       const MpiJoin* join) {
  CH_ASSIGN_OR_RETURN(internal::MpiProcess * process,
                      internal::MpiProcess::Get(join));
  return process->Exchange(blob);
}

}  // namespace crosshatch
