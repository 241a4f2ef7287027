// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TESTS_FSDP_CONFORMANCE_H_
#define CROSSHATCH_TESTS_FSDP_CONFORMANCE_H_

/// \file
/// Trains a model with FSDP on a mesh and compares its weights with those of
/// one rank that knows nothing of FSDP. The arithmetic is of small integers, so
/// the weights are equal bit for bit.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/fsdp/policy.h"
#include "crosshatch/fsdp/sharded_module.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/fsdp/training_testutil.h"
#include "crosshatch/mesh/device_mesh.h"

namespace crosshatch::fsdp {

using Axes = std::vector<MeshAxis>;

/// Returns one mesh of each kind: sharded, replicated, with tensor parallelism.
const std::vector<Axes>& ConformanceMeshes();

/// The number of steps of a scenario, and of backwards in a step.
inline constexpr int kSteps = 2;
inline constexpr int kMicro = 3;

/// A model on one rank of a mesh, or on no mesh at all.
struct ScenarioRun {
  TestModel& model;
  int part;  ///< Index of this rank's part of the batch, of `parts`.
  int parts;
  ShardedModule* root;  ///< Null if nothing is sharded.

  Tensor Loss(int64_t salt) const;
  Tensor LossOfMicro(int step, int micro) const;
};

/// A step: kMicro backwards, whose gradients add up.
using Step = std::function<absl::Status(ScenarioRun& run, int step)>;

absl::Status PlainStep(ScenarioRun& run, int step);

struct Scenario {
  std::string name;
  Step step;
  FullyShardOptions options = {};
  int repeats = 1;
  /// What the program itself does to the model, on one rank too.
  std::function<void(TestModel&, int step)> before_step = {};
};

/// The ways to accumulate gradients over the backwards of a step.
std::vector<Scenario> Accumulations();

/// One scenario for each setting of FSDP.
std::vector<Scenario> SettingScenarios();

/// Returns the weights that one rank trains, which takes PlainSteps.
Weights TrainOnOneRank(const Scenario& scenario);

/// Shards a model on `axes`, calls `body`, and expects `weights` on all ranks.
/// \param what for the message.
void ExpectWeights(const Weights& weights, const std::string& what,
                   const Axes& axes, const FullyShardOptions& options,
                   int repeats,
                   const std::function<absl::Status(ScenarioRun&)>& body,
                   uint64_t adversarial_seed = 0);

/// Expects that the scenario trains the weights of one rank on each mesh.
void ExpectTrainsAsOneRank(const Scenario& scenario,
                           const std::vector<Axes>& meshes,
                           uint64_t adversarial_seed = 0);

/// Expects the same of a program that also runs parts of the model by
/// themselves, right after an update.
void ExpectTrainsPartsAsOneRank(const Axes& axes,
                                uint64_t adversarial_seed = 0);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_TESTS_FSDP_CONFORMANCE_H_
