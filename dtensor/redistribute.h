// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTE_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTE_H_

/// \file
/// Redistribution from one layout to another of the same mesh.

#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/redistribution/comm_origin.h"
#include "crosshatch/dtensor/redistribution/options.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Returns the same values in another layout of the same mesh; `t` itself if it
/// has this layout. PlanRedistribute returns the plan. Collectives are issued
/// to the current stream, or to a side stream with `options.async`.
///
/// If the layouts differ in name only (every rank holds the same elements), the
/// result shares the memory of `t` on all ranks. If nothing is communicated,
/// the result is a part of `t` on some ranks and a copy on others. It must not
/// be written, and not be used after a write to `t`; both fail a check.
/// Otherwise, and if the dtype changes, it has memory of its own.
///
/// Differentiable, also twice. The gradient returns in the layout of `t` with
/// pending reductions replaced by Replicate, because each summand has the
/// gradient of the sum:
///
///     forward                     gradient comes   backward
///     S -> R   all-gather         P                reduce-scatter
///     S -> R   all-gather         R                slice
///     P -> R   all-reduce         R                nothing
///     P -> S   reduce-scatter     S                all-gather
///     R -> S   slice              S                all-gather
///     S -> S'  all-to-all         S'               all-to-all
///     R -> P   keep or zero       R                nothing
///
/// A communication error poisons the rank. Backward, Synchronize and the like
/// return it.
Tensor Redistribute(const Tensor& t, const LayoutSpec& to,
                    const RedistributeOptions& options = {});

/// Returns the rank's counts.
const RedistributeCounts& GetRedistributeCounts();

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTE_H_
