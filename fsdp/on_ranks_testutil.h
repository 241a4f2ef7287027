// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_ON_RANKS_TESTUTIL_H_
#define CROSSHATCH_FSDP_ON_RANKS_TESTUTIL_H_

/// \file
/// Runs a test's body on every rank of a mesh, with a log of the FSDP events.

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

/// Returns options whose gradients are sums over the ranks, to compare with one
/// rank that has the whole batch.
FullyShardOptions Summing();

/// Runs `body` on every rank of a mesh. Failures are reported as by OnMesh
/// (testing/ranks.h).
void OnRanks(const Axes& axes,
             const std::function<absl::Status(const DeviceMesh& mesh,
                                              LineSink& log)>& body,
             uint64_t adversarial_seed = 0);

/// Shards each block, then the rest of the model.
absl::Status ShardAll(TestModel& model, const DeviceMesh& mesh,
                      const FullyShardOptions& options);

/// One rank's view of a sharded model of two blocks.
struct Job {
  TestModel& model;
  const DeviceMesh& mesh;
  ShardedModule root;
  LineSink& log;

  /// Returns the loss of this rank's rows of batch `salt`.
  Tensor Loss(int64_t salt) const;
};

/// Runs a forward and its backward.
absl::Status Step(Job& job);

/// Returns rank 0's log of `body` after one Step. That step is omitted from the
/// log, because a first step differs from later ones.
std::vector<std::string> LogOf(const Axes& axes,
                               const FullyShardOptions& options,
                               const std::function<absl::Status(Job&)>& body,
                               int repeats = 1);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_ON_RANKS_TESTUTIL_H_
