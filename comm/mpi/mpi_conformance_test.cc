// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/comm/conformance_testutil.h"
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

const bool registered = RegisterCommunicatorConformanceTests(
    {.name = "Mpi",
     .run =
         [](int, absl::FunctionRef<absl::Status(World&)> fn,
            const ConformanceRunOptions& options) {
           BeAloneInDeathTest();
           return RunMpi(fn, {.timeout = options.timeout,
                              .adversarial_seed = options.adversarial_seed});
         },
     .world_sizes = {NumProcesses()},
     .exact_stalls = false});

}  // namespace
}  // namespace crosshatch
