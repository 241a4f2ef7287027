// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TESTING_ENGINE_H_
#define CROSSHATCH_TESTING_ENGINE_H_

/// \file
/// The engine and the device on which a test program runs its ranks. Each
/// target of a ch_rank_test runs the same program, with every case, by
/// `--test_engine=local|mpi|nccl --test_device=cpu|cuda`. A case that an engine
/// or a device cannot run skips itself:
///
///     TEST(SaveTest, KeepsWhatTheFirstRankWrote) {
///       CH_SKIP_ON(TestEngine::kMpi, "reads variables of other ranks");
///       ...
///     }
///
/// `skips` of the ch_rank_test is the number of cases that do, and a run of all
/// cases fails if it differs. GoogleTest's death tests (suites *DeathTest) do
/// not run on MPI: a process of MPI cannot fork.

#include "crosshatch/tensor/device.h"
#include "gtest/gtest.h"

namespace crosshatch {

enum class TestEngine {
  kLocal,  ///< Ranks are threads.
  kMpi,    ///< Ranks are processes. Each runs the whole program.
  kNccl,   ///< Ranks are threads that NCCL joins, on CUDA devices.
};

/// Returns whether this program runs its ranks on the engine or device.
bool RunsOn(TestEngine engine);
bool RunsOn(Device::Kind device);

/// Selects engine and device before the tests run. For main.cc.
void RunOn(TestEngine engine, Device::Kind device);

}  // namespace crosshatch

/// Skips the case if its ranks are on `where`, a TestEngine or a Device::Kind.
/// For a test's body and for SetUp of a fixture.
#define CH_SKIP_ON(where, reason)                              \
  do {                                                         \
    if (::crosshatch::RunsOn(where)) GTEST_SKIP() << (reason); \
  } while (false)

#endif  // CROSSHATCH_TESTING_ENGINE_H_
