// SPDX-License-Identifier: Apache-2.0
//
// The engine of mpirun's processes, on MPI or, if CROSSHATCH_TEST_TRANSPORT is
// "ucx", on UCX.

#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/conformance_testutil.h"
#include "crosshatch/comm/world.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

/// Returns the number of mpirun's processes. Tests are registered before MPI is
/// initialized.
int NumProcesses() {
  const char* size = std::getenv("OMPI_COMM_WORLD_SIZE");
  CH_CHECK(size != nullptr) << "this test is started by mpirun";
  return std::atoi(size);
}

/// Gives the child of a death test its own MPI, which is no process of the job.
/// Its files are in the job's directory.
void BeAloneInDeathTest() {
  if (GTEST_FLAG_GET(internal_run_death_test).empty()) return;
  std::vector<std::string> names;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (text.starts_with("OMPI_MCA_orte_tmpdir_base")) continue;
    if (text.starts_with("PMIX_") || text.starts_with("OMPI_")) {
      names.push_back(text.substr(0, text.find('=')));
    }
  }
  for (const std::string& name : names) unsetenv(name.c_str());
  setenv("OMPI_MCA_ess_singleton_isolated", "1", /*overwrite=*/1);
}

bool IsByUcx() {
  const char* transport = std::getenv("CROSSHATCH_TEST_TRANSPORT");
  return transport != nullptr && std::string(transport) == "ucx";
}

/// MPI only exchanges the addresses of UCX, and ends with the test.
class EndOfMpi final : public testing::Environment {
 public:
  void TearDown() override { EndMpi(); }
};
const testing::Environment* const end_of_mpi =
    IsByUcx() ? testing::AddGlobalTestEnvironment(new EndOfMpi) : nullptr;

const bool registered = RegisterCommunicatorConformanceTests(
    {.name = IsByUcx() ? "Ucx" : "Mpi",
     .run = [](int, absl::FunctionRef<absl::Status(World&)> fn,
               const JobOptions& options) -> absl::Status {
       BeAloneInDeathTest();
       MpiOptions of_job = {.job = options};
       if (!IsByUcx()) return RunMpi(fn, of_job);
       UcxJoin join = {.gather = ExchangeByMpi};
       CH_ASSIGN_OR_RETURN(const auto all, ExchangeByMpi(""));
       join.size = static_cast<int>(all.size());
       // Undefined in a single process.
       const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
       join.rank = rank == nullptr ? 0 : std::atoi(rank);
       of_job.ucx = &join;
       return RunMpi(fn, of_job);
     },
     .world_sizes = {NumProcesses()},
     .exact_stalls = false});

}  // namespace
}  // namespace crosshatch
