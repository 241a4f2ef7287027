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

/// Gradients are sums over the ranks, as one rank that has the whole batch
/// computes them.
FullyShardOptions Summing();

/// Runs `body` on every rank of a mesh; `log` is the rank's own.
void OnRanks(const Axes& axes,
             const std::function<absl::Status(const DeviceMesh& mesh,
                                              LineSink& log)>& body,
             uint64_t adversarial_seed = 0);

/// Each block, then the rest.
absl::Status ShardAll(TestModel& model, const DeviceMesh& mesh,
                      const FullyShardOptions& options);

/// A sharded model of two blocks on one rank of a mesh.
struct Job {
  TestModel& model;
  const DeviceMesh& mesh;
  ShardedModule root;
  LineSink& log;

  /// Of this rank's rows of batch `salt`.
  Tensor Loss(int64_t salt) const;
};

/// A forward and its backward.
absl::Status Step(Job& job);

/// What `body` logs on rank 0 after one Step.
std::vector<std::string> LogOf(const Axes& axes,
                               const FullyShardOptions& options,
                               const std::function<absl::Status(Job&)>& body,
                               int repeats = 1);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_ON_RANKS_TESTUTIL_H_
