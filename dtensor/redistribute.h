// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTE_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTE_H_

/// \file
/// From one layout to another.

#include "absl/types/span.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/layout/placement.h"
#include "crosshatch/dtensor/redistribution/comm_origin.h"
#include "crosshatch/dtensor/redistribution/implicit_redistribution.h"
#include "crosshatch/dtensor/redistribution/options.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// The same values in another layout of the same mesh; `t` itself where it lies
/// so already. What is moved, and how, PlanRedistribute says; collectives go to
/// the current stream, or to a side stream with `options.async`.
///
/// Where layouts differ in name only (every rank holds the same elements), the
/// result is `t` in all but the layout: it shares its memory, on all ranks.
/// Where nothing is communicated, it is a part of `t` or a copy, from rank to
/// rank: it is not written to, and not used after a write to `t`; both fail a
/// check. Else, and where the dtype changes, it has memory of its own.
///
/// Differentiable, and twice. The gradient goes back in the layout of `t`, a
/// pending reduction read as Replicate (each summand has the gradient of the
/// sum):
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
/// A communication error poisons the rank; it comes out of Backward,
/// Synchronize and the like.
Tensor Redistribute(const Tensor& t, const Layout& to,
                    const RedistributeOptions& options = {});
/// By one placement for each axis of the mesh of `t` (Layout::FromPlacements;
/// what that refuses fails a check).
Tensor Redistribute(const Tensor& t, absl::Span<const Placement> to,
                    const RedistributeOptions& options = {});

/// The rank's counts.
const RedistributeCounts& GetRedistributeCounts();

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTE_H_
