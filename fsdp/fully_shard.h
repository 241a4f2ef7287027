// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_FULLY_SHARD_H_
#define CROSSHATCH_FSDP_FULLY_SHARD_H_

/// \file
/// FullyShard: shards a module's parameters over a mesh axis and unshards them
/// only while they are used.

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "crosshatch/fsdp/plan_detail.h"
#include "crosshatch/fsdp/policy.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/module.h"

namespace crosshatch::fsdp {

/// Shards the parameters of `module` that no FullyShard below it has sharded.
/// Call it bottom-up: blocks first, then the whole model. The parameters of one
/// call form one group, which is gathered and reduced as a unit. Parameters
/// that differ in dtype, gather dtype, mesh or requires_grad form separate
/// groups. Afterwards Parameter::data() is a DTensor, and optimizers created
/// from the parameters work on shards.
///
/// If a parameter is tied with one outside of `module`, it joins the group of
/// the lowest sharded ancestor that contains all its users. So build the whole
/// model before sharding it.
///
/// \param mesh 1-D: shards over its axis. That is ZeRO-3, or ZeRO-2 with
///     reshard_after_forward = false, which keeps unsharded parameters until
///     the end of backward. 2-D: HSDP, which replicates over
///     FullyShardOptions::replicate_axis (default: the first axis) and shards
///     over the other axis.
/// \error kInvalidArgument if `mesh` has more than two axes, lacks this rank
///     or replicate_axis, if options contradict each other, or if a parameter
///     cannot be sharded.
/// \error kFailedPrecondition if the module is sharded already, if an ancestor
///     that was sharded earlier has its parameters, or if a group below holds a
///     parameter that is tied with one outside of the group's modules.
/// \error The rank's first error if the broadcast from the first rank fails. On
///     any other error nothing has changed.
absl::Status FullyShard(nn::Module& module, const DeviceMesh& mesh,
                        const FullyShardOptions& options = {});

/// Shards several modules whose parameters form common groups, for example a
/// norm and the head after it. The parameters are gathered before the first
/// module runs and freed after the last module of the list has run. If a module
/// runs again, they are gathered again.
/// \error kInvalidArgument also if `modules` is empty or has a module twice.
absl::Status FullyShard(absl::Span<nn::Module* const> modules,
                        const DeviceMesh& mesh,
                        const FullyShardOptions& options = {});

/// Describes the groups of `module` and of all sharded modules below it: their
/// shares, their ZeRO stage and why they are separate. Assumes that `module` is
/// the root.
std::string DescribePlan(nn::Module& module,
                         PlanDetail detail = PlanDetail::kSummary);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_FULLY_SHARD_H_
