// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_FULLY_SHARD_H_
#define CROSSHATCH_FSDP_FULLY_SHARD_H_

/// \file
/// FullyShard: shards a module's parameters over a mesh axis and keeps them
/// sharded but for the time they are used.

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "crosshatch/fsdp/plan_detail.h"
#include "crosshatch/fsdp/policy.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/module.h"

namespace crosshatch::fsdp {

/// Shards the parameters of `module` that no FullyShard below it has claimed.
/// Call it bottom-up: blocks first, then the whole model. Each call makes the
/// parameters one group, which is gathered and reduced as one; parameters of
/// different dtypes, and frozen beside trainable ones, become groups of their
/// own. From then on Parameter::data() is a DTensor, and optimizers made of the
/// parameters work on shards.
///
/// A parameter that is tied with one outside of `module` is left to the lowest
/// ancestor that is sharded and has all its users below it: build the whole
/// model, then shard it.
///
/// \param mesh 1-D: shards over its axis (ZeRO-3; with reshard_after_forward
///     false ZeRO-2 and unsharded parameters kept to the end of backward). 2-D:
///     HSDP, replicates over FullyShardOptions::replicate_axis, by default the
///     first one, and shards over the other.
/// \error kInvalidArgument for a mesh of other ndim, without this rank, or
///     without replicate_axis; options that contradict each other, or a
///     parameter that cannot be sharded;
///     kFailedPrecondition for a module that is sharded already, one whose
///     parameters belong to a module above that was sharded before, or one
///     above a group that holds a parameter tied with one outside of it; the
///     rank's first error, where values come from the first rank. On any other
///     error nothing has changed.
absl::Status FullyShard(nn::Module& module, const DeviceMesh& mesh,
                        const FullyShardOptions& options = {});

/// As above for several modules, whose parameters become groups together: a
/// norm and the head after it, say. They are gathered before the first of them
/// runs and freed after the last of the list has run; one that runs again is
/// gathered again.
/// \error kInvalidArgument also for no modules, or one that is there twice.
absl::Status FullyShard(absl::Span<nn::Module* const> modules,
                        const DeviceMesh& mesh,
                        const FullyShardOptions& options = {});

/// The groups of `module` and all below it, with the why, the shares and the
/// ZeRO stage that they amount to when `module` is the root.
std::string DescribePlan(nn::Module& module,
                         PlanDetail detail = PlanDetail::kSummary);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_FULLY_SHARD_H_
