// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TESTS_FSDP_SCRIPT_CONFORMANCE_H_
#define CROSSHATCH_TESTS_FSDP_SCRIPT_CONFORMANCE_H_

/// \file
/// Runs an FsdpScript on a mesh, and on one rank with an oracle of what is
/// reduced when. An invalid call (such as a backward without a loss) does
/// nothing in either, so any subset of a script's calls is a valid script.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/tests/fsdp_script.h"

namespace crosshatch {

/// A rank's view of a call: losses, weights, gradients. Missing gradients are
/// zeros.
struct Observation {
  int call;
  std::string what;
  std::vector<double> values;
  friend bool operator==(const Observation&, const Observation&) = default;
};

/// The result of a summon, which may be refused during an iteration.
struct Summoned {
  int call;
  bool refused;
  std::vector<int> parameters;  ///< Their indices in Module::Parameters.
  friend bool operator==(const Summoned&, const Summoned&) = default;
};

struct ScriptResult {
  std::vector<Observation> observations;
  std::vector<Summoned> summoned;
};

/// Runs the script on one rank of a mesh.
/// \error as RunOnMesh.
absl::StatusOr<ScriptResult> RunOnRank(const FsdpScript& script, World& world);

/// Returns the results by rank.
/// \error any error of the run; kInternal if a call was wrongly refused or
///     accepted, or ranks differ in that.
absl::StatusOr<std::vector<ScriptResult>> RunOnMesh(const FsdpScript& script);

/// Returns the expected results of the ranks.
/// \param summoned the results of summons on the mesh
absl::StatusOr<std::vector<ScriptResult>> RunOracle(
    const FsdpScript& script, const std::vector<Summoned>& summoned);

/// Returns the first difference between the two, or "".
std::string FirstDifference(const FsdpScript& script);

/// Expects equal results on every rank, on any engine. The script must not
/// summon.
void ExpectSameAsOracle(const FsdpScript& script);

/// Runs FirstDifference in a process of its own, so that a failed check is also
/// a difference. No other thread may run meanwhile.
std::string FirstDifferenceApart(const FsdpScript& script);

/// Returns a minimal script that still fails.
FsdpScript Smallest(FsdpScript script);

}  // namespace crosshatch

#endif  // CROSSHATCH_TESTS_FSDP_SCRIPT_CONFORMANCE_H_
