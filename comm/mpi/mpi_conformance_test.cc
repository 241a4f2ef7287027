// SPDX-License-Identifier: Apache-2.0
//
// The engine of processes that mpirun starts, by MPI, or, where the variable
// CROSSHATCH_TEST_TRANSPORT is "ucx", by UCX.

#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/conformance_testutil.h"
#include "crosshatch/comm/end_mpi.h"
#include "crosshatch/comm/world.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

/// As mpirun says; the tests are registered before MPI is there.
int NumProcesses() {
  const char* size = std::getenv("OMPI_COMM_WORLD_SIZE");
  CH_CHECK(size != nullptr) << "this test is started by mpirun";
  return std::atoi(size);
}

/// The child in which a test dies is no process of the job: it has MPI for
/// itself, with its files where those of the job are.
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

/// MPI exchanges the addresses of UCX alone, and ends with the test.
class EndOfMpi final : public testing::Environment {
 public:
  void TearDown() override { EndMpi(); }
};
const testing::Environment* const end_of_mpi =
    IsByUcx() ? testing::AddGlobalTestEnvironment(new EndOfMpi) : nullptr;

const bool registered = RegisterCommunicatorConformanceTests(
    {.name = IsByUcx() ? "Ucx" : "Mpi",
     .run = [](int, absl::FunctionRef<absl::Status(World&)> fn,
               const ConformanceRunOptions& options) -> absl::Status {
       BeAloneInDeathTest();
       MpiOptions of_job = {
           .job = {.timeout = options.timeout,
                   .test = {.adversarial_seed = options.adversarial_seed}}};
       if (!IsByUcx()) return RunMpi(fn, of_job);
       UcxJoin join = {.gather = ExchangeByMpi};
       CH_ASSIGN_OR_RETURN(const auto all, ExchangeByMpi(""));
       join.size = static_cast<int>(all.size());
       // One that is alone has no such variable.
       const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
       join.rank = rank == nullptr ? 0 : std::atoi(rank);
       of_job.ucx = &join;
       return RunMpi(fn, of_job);
     },
     .world_sizes = {NumProcesses()},
     .exact_stalls = false});

}  // namespace
}  // namespace crosshatch
