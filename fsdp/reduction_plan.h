// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_REDUCTION_PLAN_H_
#define CROSSHATCH_FSDP_REDUCTION_PLAN_H_

/// \file
/// ReductionPlan: the steps from a group's unsharded gradients to the sharded
/// ones that the optimizer reads, and where the sum is divided. A value;
/// GroupGradients runs it.

#include <cstdint>
#include <string>
#include <vector>

#include "crosshatch/tensor/dtype.h"

namespace crosshatch::fsdp {

/// Factors that multiply gradients in the stages of a reduction. Their product
/// is 1 / divide factor. A factor of 1 costs nothing.
struct GradientDivision {
  /// Applied to unsharded gradients before the reduce-scatter.
  double before = 1;
  /// Applied to the result of the reduce-scatter, within the collective.
  double reduce_scatter = 1;
  /// Applied to the result of the all-reduce over replicas, within the
  /// collective.
  double all_reduce = 1;
  /// Applied to the reduced shard by a separate pass.
  double after = 1;

  friend bool operator==(const GradientDivision& a, const GradientDivision& b) {
    return a.before == b.before && a.reduce_scatter == b.reduce_scatter &&
           a.all_reduce == b.all_reduce && a.after == b.after;
  }
};

/// Returns factors that divide the sum by `factor`.
///
/// By default there is one division in float32 or wider, within the
/// reduce-scatter. float16 overflows at 65504 and loses bits below 6e-5. So
/// float16 gradients are divided exactly, before they are summed, by the
/// smallest power of two that is at least sqrt(factor), and by the rest in the
/// last collective.
/// \param replicated whether an all-reduce over replicas follows (HSDP).
/// \param force_sum whether collectives only sum, so that a pass after them
///     divides.
GradientDivision PlanGradientDivision(DType reduce_dtype, double factor,
                                      bool replicated, bool force_sum);

/// The inputs of PlanReduction.
struct ReductionFacts {
  DType reduce_dtype = kFloat32;
  DType shard_dtype = kFloat32;
  /// HSDP: whether there are replicas, and whether this reduction sums over
  /// them.
  bool replicated = false;
  bool sums_replicas = true;
  /// A partial reduction (over shards only) exists.
  bool has_partial = false;
  /// Some parameter has a gradient to add to.
  bool accumulates = false;
  /// Sharded gradients are in host memory.
  bool offloaded = false;
  /// There is a CustomComm::all_reduce_hook, and it has a stream of its own.
  bool hook = false;
  bool hook_stream = false;
  GradientDivision division;
};

/// The buffers of group_gradients.h; kReduced is the reduced shard.
enum class ReductionBuffer : uint8_t { kFull, kPartial, kReduced, kSharded };

/// Streams of comm_context.h.
enum class ReductionStream : uint8_t {
  kCompute,
  kReduceScatter,
  kAllReduce,
  kHook,
  kToHost,
};

/// Operations of a reduction. `from`, `to` and `scale` are the step's.
enum class ReductionOp : uint8_t {
  kScale,          ///< Multiplies `to` by `scale`, in place.
  kReduceScatter,  ///< Sums `from` over shards, times `scale`, to `to`.
  kAllReduce,      ///< Sums `to` over replicas, times `scale`, in place.
  kHook,           ///< Runs the program's hook on `to`.
  kCopy,           ///< Converts and copies `from` to `to`.
  kAdd,            ///< Converts `from` and adds it to `to`.
  kPublish,        ///< Sets the parameters' gradients.
};

/// A step of a reduction.
struct ReductionStep {
  ReductionOp op;
  ReductionBuffer from = ReductionBuffer::kFull;
  ReductionBuffer to = ReductionBuffer::kFull;
  /// If it differs from the previous step's stream, it first waits for that
  /// one.
  ReductionStream stream = ReductionStream::kCompute;
  double scale = 1;

  std::string ToString() const;
};

/// The steps of a reduction, in order.
struct ReductionPlan {
  /// The buffer that holds the result: the partial reduction if the sum over
  /// replicas is deferred, else the sharded gradients.
  ReductionBuffer result = ReductionBuffer::kSharded;
  std::vector<ReductionStep> steps;

  /// Returns whether a step writes the reduced shard.
  bool needs_reduced() const;
  /// Returns one line per step, e.g. "reduce_scatter full -> sharded times 0.5
  /// on reduce_scatter".
  std::string ToString() const;
};

/// Returns the steps of a reduction.
/// \pre the full gradients hold values, or zeros for parameters without a
///     gradient.
ReductionPlan PlanReduction(const ReductionFacts& facts);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_REDUCTION_PLAN_H_
