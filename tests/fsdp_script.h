// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TESTS_FSDP_SCRIPT_H_
#define CROSSHATCH_TESTS_FSDP_SCRIPT_H_

/// \file
/// Programs that use FSDP, as printable values: a model, its sharding and a
/// list of calls. A script runs on a mesh, and on one rank with an oracle of
/// what is reduced when. An invalid call (such as a backward without a loss)
/// does nothing in either, so any subset of a script's calls is a valid script.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/fsdp/policy.h"
#include "crosshatch/mesh/device_mesh.h"

namespace crosshatch {

/// A part of the model: a Linear [3, 3], an added vector (whose backward needs
/// no parameter), or a chain of parts. Parts are numbered depth-first from the
/// root, 0. The root's last part is a Linear that is always run and trained.
struct PartSpec {
  enum class Form : uint8_t { kLinear, kShift, kChain, kResidual };
  /// The split by tensor parallelism, if the mesh has the axis.
  enum class Split : uint8_t { kWhole, kColumns, kRows };
  Form form = Form::kLinear;
  bool bias = false;
  bool relu = false;
  bool frozen = false;
  /// The number of an earlier Linear with the same weight, or -1.
  int tied_to = -1;
  bool checkpointed = false;
  int repeats = 1;  ///< How often its parts run, one after another.
  Split split = Split::kWhole;
  std::vector<PartSpec> parts;
};

/// One call of FullyShard or of Replicate. The divisor of gradients divides the
/// script's loss_factor.
struct ShardSpec {
  std::vector<int> parts;  ///< One, or a list.
  fsdp::FullyShardOptions options;
  bool ignores_frozen = false;
  bool replicated = false;  ///< One part, by Replicate.
  /// Uses mesh_of to put vectors on the mesh's ranks in another shape.
  bool vectors_elsewhere = false;
  std::string text;  ///< Of the options.
};

/// One call of the program, on part `part` if it applies to one. A part that is
/// not sharded refers to the root.
struct ScriptCall {
  enum class Kind : uint8_t {
    kForward,        ///< value: which batch; on: by ShardedModule::Run
    kForwardNoGrad,  ///< as kForward
    kBackward,       ///< value: which of the losses that are left
    kDropLosses,     ///< leaves the iteration
    kStep,           ///< on: then the gathers wait for it alone
    kZeroGrad,
    kCompare,  ///< weights and gradients
    kSummon,   ///< on: negates; value: bits of the options
    kUnshard,  ///< on: and waits
    kReshard,
    kSync,  ///< part, on, recurse; as the following
    kAllReduce,
    kReshardAfterForward,
    kReshardAfterBackward,
    kKeepUnsharded,
    kForceSum,
    kCustomComm,
    kReduceUnused,
    kLastBackward,
    kManual,
    kFinalize,
    kDivide,    ///< value: the factor's power of two
    kFreeze,    ///< value: which parameter
    kSkip,      ///< value: the ranks that leave out `part`, by bits
    kPrefetch,  ///< on: of forward; value: chooses the list
    kReset,
    kUnshardInBackward,  ///< of parts whose backward needs no parameter
    kAccumulate,         ///< value: which batch; on: in shards
    // Random scripts do not contain the following.
    kForwardPart,  ///< of `part` by itself; value: which batch; on: with grad
    kNegate,  ///< the weights, as an update that the host does not wait for
    kExpectNoMemory,  ///< beyond what is held right after sharding
  };
  static constexpr int kNumRandomKinds =
      static_cast<int>(Kind::kAccumulate) + 1;
  static constexpr int kNumKinds = static_cast<int>(Kind::kExpectNoMemory) + 1;

  Kind kind = Kind::kForward;
  int part = 0;
  int value = 0;
  bool on = false;
  bool recurse = false;
};

struct FsdpScript {
  std::vector<MeshAxis> axes;
  PartSpec model;
  std::vector<ShardSpec> shards;  ///< In order.
  std::vector<ScriptCall> calls;
  uint64_t adversarial_seed = 0;
  /// Multiplies losses before backward, so that divisions give integers.
  double loss_factor = 4;
  /// Bound of the relative error of gradients.
  float rounding = 0;

  int ranks() const;
  /// Ranks with the same part of the batch: those of the axis "tp".
  int tp_ranks() const;
  int data_ranks() const { return ranks() / tp_ranks(); }
  /// Returns whether the mesh replicates its shards.
  bool replicates() const { return axes.front().name == "replicate"; }
};

FsdpScript RandomFsdpScript(uint64_t seed, int num_calls);

std::string ToString(const FsdpScript& script);

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

#endif  // CROSSHATCH_TESTS_FSDP_SCRIPT_H_
