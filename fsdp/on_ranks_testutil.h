// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_ON_RANKS_TESTUTIL_H_
#define CROSSHATCH_FSDP_ON_RANKS_TESTUTIL_H_

/// \file
/// Runs a test's body on every rank of a mesh, with the log of what FSDP does
/// there.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/fsdp/policy.h"
#include "crosshatch/fsdp/sharded_module.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/mesh/device_mesh.h"

namespace crosshatch::fsdp {

using Axes = std::vector<MeshAxis>;

/// \returns options by which gradients are sums over the ranks, because one
/// rank that has the whole batch computes these.
FullyShardOptions Summing();

/// Runs `body` on every rank of a mesh; `log` is the rank's own, and takes what
/// FSDP logs there. Failures are reported as OnMesh reports them
/// (testing/ranks.h).
void OnRanks(const Axes& axes,
             const std::function<absl::Status(const DeviceMesh& mesh,
                                              LineSink& log)>& body,
             uint64_t adversarial_seed = 0);

/// Shards each block by itself, then what is left of the model.
absl::Status ShardAll(TestModel& model, const DeviceMesh& mesh,
                      const FullyShardOptions& options);

/// What a test works on: one rank's view of a sharded model of two blocks.
struct Job {
  TestModel& model;
  const DeviceMesh& mesh;
  ShardedModule root;
  LineSink& log;

  /// \returns the loss of this rank's rows of batch `salt`.
  Tensor Loss(int64_t salt) const;
};

/// Runs a forward and its backward.
absl::Status Step(Job& job);

/// \returns what `body` logs on rank 0 after one Step, which is left out
/// because a first step differs from those that follow it.
std::vector<std::string> LogOf(const Axes& axes,
                               const FullyShardOptions& options,
                               const std::function<absl::Status(Job&)>& body,
                               int repeats = 1);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_ON_RANKS_TESTUTIL_H_
