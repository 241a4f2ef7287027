// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_VERIFY_VERIFY_STEP_H_
#define CROSSHATCH_VERIFY_VERIFY_STEP_H_

/// \file
/// VerifyStep: proves, without running a job, that a program's collectives
/// match, its streams are ordered, nothing waits in a circle, memory is
/// released and gradients are right. docs/verified_step.md explains the proof
/// and its assumptions.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/mesh/mesh_layout.h"
#include "crosshatch/verify/job_log.h"

namespace crosshatch::verify {

struct VerifyOptions {
  /// The axes of the mesh that split the batch. Unset: all but "tp".
  std::optional<std::vector<std::string>> batch_axes = {};
  /// The number that sums of gradients are divided by. Unset: the number of
  /// ranks that the batch is split over.
  std::optional<double> divisor = {};
  /// Up to this size all ranks of a job are run. In a larger job one rank of
  /// each class is.
  int max_ranks = 64;
  /// The number of bytes that `world_rank` should receive over groups of
  /// `name` (the mesh axis), or nullopt if that is not checked.
  std::function<std::optional<int64_t>(int world_rank, const std::string& name)>
      expected_bytes = nullptr;
  /// The device that the job runs on; null: the CPU. Must outlive the call.
  const DeviceBackend* backend = nullptr;
};

/// A certificate if `findings` is empty, else counterexamples.
struct VerifyReport {
  std::vector<Finding> findings;
  /// The job's logs, to which the findings refer.
  JobLog job;
  int ranks_run = 0;
  int64_t collectives = 0;  ///< Of one rank of each class.
  int64_t accesses = 0;     ///< To memory.
  int64_t pairs = 0;        ///< Of accesses on two streams, all ordered.
  int64_t unknown_kernels = 0;
  /// Waits that change no order, of one rank of each class.
  std::vector<EventOfRank> superfluous_waits;

  bool ok() const { return findings.empty(); }
  /// Returns the certificate or the counterexamples as text.
  std::string ToString() const;
  /// Returns the ranks of the findings, or one rank of each class, as a trace
  /// in Chrome's JSON, which ui.perfetto.dev opens. Time is the order of issue.
  /// An arrow leads from the first to the second event of each finding.
  std::string ToTrace() const;
};

/// Runs `program` as a dry run of one rank of each class of the mesh and checks
/// what it issues. The program is what a job runs: it makes its mesh and model,
/// and does one step or more. It may be called on any thread.
/// \param mesh has the axes of the program's own mesh, by the same names.
/// \error that of the program; kInvalidArgument for an invalid mesh or an
///     unknown axis; kFailedPrecondition if the ranks of a large job are not
///     alike along its axes, so that no class stands for them.
absl::StatusOr<VerifyReport> VerifyStep(
    absl::FunctionRef<absl::Status(World&)> program,
    const std::vector<MeshAxis>& mesh, const VerifyOptions& options = {});

/// Checks logs, as VerifyStep does.
VerifyReport CheckJob(JobLog job, const GradientRule& rule,
                      const VerifyOptions& options = {});

}  // namespace crosshatch::verify

#endif  // CROSSHATCH_VERIFY_VERIFY_STEP_H_
