// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_REDUCTION_PLAN_H_
#define CROSSHATCH_FSDP_REDUCTION_PLAN_H_

/// \file
/// ReductionPlan: the steps that take a group's gradients from where backward
/// wrote them to where the optimizer reads them. A value; GroupGradients runs
/// it.

#include <cstdint>
#include <string>
#include <vector>

#include "crosshatch/fsdp/gradient_division.h"
#include "crosshatch/tensor/dtype.h"

namespace crosshatch::fsdp {

/// What decides how a group is reduced.
struct ReductionFacts {
  DType reduce_dtype = kFloat32;
  DType shard_dtype = kFloat32;
  /// Sums over replicas follow those over shards (HSDP), and now.
  bool replicated = false;
  bool sums_replicas = true;
  /// A reduction without the replicas is waiting for one with them.
  bool has_partial = false;
  /// Some parameter has a gradient, which is added to.
  bool accumulates = false;
  /// Sharded gradients lie in host memory.
  bool offloaded = false;
  /// The program looks at the reduced shard, on a stream of its own or on that
  /// of the step before.
  bool hook = false;
  bool hook_stream = false;
  GradientDivision division;
};

/// Buffers of group_gradients.h, and the reduced shard between them.
enum class ReductionBuffer : uint8_t { kFull, kPartial, kReduced, kSharded };

/// Streams of comm_context.h.
enum class ReductionStream : uint8_t {
  kCompute,
  kReduceScatter,
  kAllReduce,
  kHook,
  kToHost,
};

enum class ReductionOp : uint8_t {
  kScale,          ///< `to` times `scale`, in place.
  kReduceScatter,  ///< The sum over shards of `from`, times `scale`, to `to`.
  kAllReduce,      ///< The sum over replicas of `to`, times `scale`, in place.
  kHook,           ///< The program's hook on `to`.
  kCopy,           ///< `from`, converted, to `to`.
  kAdd,            ///< `from`, converted, added to `to`.
  kPublish,        ///< Parameters get their gradients.
};

struct ReductionStep {
  ReductionOp op;
  ReductionBuffer from = ReductionBuffer::kFull;
  ReductionBuffer to = ReductionBuffer::kFull;
  /// Where it is another than the step before's, it waits for that one.
  ReductionStream stream = ReductionStream::kCompute;
  double scale = 1;

  std::string ToString() const;
};

struct ReductionPlan {
  /// What holds the result: the partial reduction where replicas are left for
  /// later, else the sharded gradients.
  ReductionBuffer result = ReductionBuffer::kSharded;
  std::vector<ReductionStep> steps;

  /// Whether a reduced shard is needed between the buffers.
  bool needs_reduced() const;
  /// A line for each step: "reduce_scatter full -> sharded times 0.5 on
  /// reduce_scatter".
  std::string ToString() const;
};

/// The full gradients have their content, zeros where there is no gradient;
/// what is missing is a matter of the buffers.
ReductionPlan PlanReduction(const ReductionFacts& facts);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_REDUCTION_PLAN_H_
