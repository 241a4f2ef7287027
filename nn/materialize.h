// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_MATERIALIZE_H_
#define CROSSHATCH_NN_MATERIALIZE_H_

/// \file
/// Allocation and initialization of deferred parameters and buffers.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "crosshatch/nn/parameter.h"

namespace crosshatch::nn {

struct MaterializeOptions {
  uint64_t seed = 0;
};

/// Allocates memory for every deferred storage under Parameter::data() and
/// fills the parameters in it by their initializers. Parameters that have
/// memory already keep their values.
///
/// The value of an element depends on the seed, the parameter's name and its
/// index in the global tensor, so it is the same on every mesh, and each rank
/// computes only its own elements. In a dry run memory is accounted and nothing
/// is filled. All ranks of the meshes of deferred parameters call it: they
/// compare seeds and parameters over the side channel, once for each mesh.
/// \pre the parameters have names
/// \error before anything is done, naming a parameter that cannot be filled:
///     kFailedPrecondition if its layout holds partial sums, kInvalidArgument
///     if its initializer does not fit it (CheckInitializer); kInvalidArgument
///     naming two ranks whose seeds or parameters differ; errors of
///     communication.
absl::Status Materialize(absl::Span<Parameter* const> parameters,
                         const MaterializeOptions& options);

/// Allocates memory (MemoryClass::kParameter) with undefined content for every
/// deferred storage, once if several parameters view it: the first half of
/// Materialize, for callers that fill the parameters themselves.
void LeaseParameters(absl::Span<Parameter* const> parameters);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_MATERIALIZE_H_
