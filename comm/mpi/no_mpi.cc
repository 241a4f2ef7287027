// SPDX-License-Identifier: Apache-2.0
//
// Replaces the engine of processes in a build without MPI.

#include <string>
#include <vector>

#include "crosshatch/comm/ucx/run_ucx.h"
#include "crosshatch/comm/world.h"

namespace crosshatch {
namespace {

absl::Status NotBuilt(const char* function) {
  return absl::UnimplementedError(
      std::string(function) +
      ": this program was built without MPI (--//:mpi=false)");
}

}  // namespace

absl::Status RunMpi(absl::FunctionRef<absl::Status(World&)> fn,
                    const MpiOptions& options) {
  if (options.ucx != nullptr) return internal::RunUcx(fn, options);
  return NotBuilt("RunMpi");
}

void EndMpi() {}

absl::StatusOr<std::vector<std::string>> ExchangeByMpi(const std::string&) {
  return NotBuilt("ExchangeByMpi");
}

}  // namespace crosshatch
