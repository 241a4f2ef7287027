// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TESTS_FSDP_SCRIPT_CONFORMANCE_H_
#define CROSSHATCH_TESTS_FSDP_SCRIPT_CONFORMANCE_H_

/// \file
/// Runs an FsdpScript on a mesh, and again on one rank that knows nothing of
/// FSDP and keeps the books of what is reduced when. A call that makes no sense
/// where it stands (a backward without a loss) does nothing in either, so a
/// script stays one when calls are taken out of it.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/tests/fsdp_script.h"

namespace crosshatch {

/// What a rank saw of a call: losses, weights, gradients. Gradients that are
/// not there are zeros.
struct Observation {
  int call;
  std::string what;
  std::vector<double> values;
  friend bool operator==(const Observation&, const Observation&) = default;
};

/// Of a summon, which may be refused in mid-iteration.
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

/// On one rank of a mesh. \error as RunOnMesh.
absl::StatusOr<ScriptResult> RunOnRank(const FsdpScript& script, World& world);

/// By rank. \error that of the run; kInternal where a call was refused, or
/// taken, that should not have been, or ranks differ in what was.
absl::StatusOr<std::vector<ScriptResult>> RunOnMesh(const FsdpScript& script);

/// What the ranks should have seen.
/// \param summoned what summons gave on the mesh.
absl::StatusOr<std::vector<ScriptResult>> RunOracle(
    const FsdpScript& script, const std::vector<Summoned>& summoned);

/// "" if both give the same; else what went wrong first.
std::string FirstDifference(const FsdpScript& script);

/// Expects that every rank sees what it should, and reports where it does not
/// on any engine. The script summons nothing.
void ExpectSameAsOracle(const FsdpScript& script);

/// As FirstDifference, in a process of its own: a failed check is what went
/// wrong too. No other thread runs meanwhile.
std::string FirstDifferenceApart(const FsdpScript& script);

/// The script, with which something goes wrong, without the calls and the
/// options that it goes wrong without too.
FsdpScript Smallest(FsdpScript script);

}  // namespace crosshatch

#endif  // CROSSHATCH_TESTS_FSDP_SCRIPT_CONFORMANCE_H_
