// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TESTS_FSDP_SCENARIOS_H_
#define CROSSHATCH_TESTS_FSDP_SCENARIOS_H_

/// \file
/// Uses of FSDP, as scripts (fsdp_script.h).

#include <cstdint>
#include <string>
#include <vector>

#include "crosshatch/fsdp/policy.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tests/fsdp_script.h"

namespace crosshatch {

/// A step of a program, whose backwards accumulate gradients.
struct Scenario {
  std::string name;
  std::vector<ScriptCall> step;
  fsdp::FullyShardOptions options = {};
  int repeats = 1;  ///< How often the modules run in a forward.
  /// Replaces every other step, if not empty.
  std::vector<ScriptCall> odd_step = {};
  std::vector<ScriptCall> before = {};  ///< The first step.
  bool checkpointed = false;
};

using Axes = std::vector<MeshAxis>;

/// Returns one mesh of each kind: sharded, replicated, with tensor parallelism.
std::vector<Axes> ScenarioMeshes();

/// The ways to accumulate gradients over the backwards of a step.
std::vector<Scenario> Accumulations();

std::vector<Scenario> SettingScenarios();

/// Shards an uneven dim of joined axes, or another dim.
std::vector<Scenario> ShardDims();

/// Reshards to smaller meshes after the forward.
std::vector<Scenario> SmallerMeshes();

/// Keeps parameters whole on the ranks of an axis of one rank.
Scenario ReplicatedScenario();

/// Runs parts of the model by themselves, right after an update.
Scenario PartsByThemselves();

std::vector<ScriptCall> PublicCalls();

/// Leaves an iteration after `count` of the PublicCalls; it leaves no memory.
Scenario LeftAfter(size_t count);

/// Expects that ranks of each mesh see what one rank sees in two steps.
void ExpectSameAsOracle(const Scenario& scenario,
                        const std::vector<Axes>& meshes,
                        uint64_t adversarial_seed = 0);

}  // namespace crosshatch

#endif  // CROSSHATCH_TESTS_FSDP_SCENARIOS_H_
