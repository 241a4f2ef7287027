// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_MATERIALIZE_H_
#define CROSSHATCH_NN_MATERIALIZE_H_

/// \file
/// From names and shapes to memory with first values.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "crosshatch/nn/parameter.h"

namespace crosshatch::nn {

struct MaterializeOptions {
  uint64_t seed = 0;
};

/// Gives memory to every deferred storage under Parameter::data() and fills the
/// parameters on it by their initializers. Parameters that have memory already
/// keep their values.
///
/// The value of an element depends on the seed, the parameter's name and its
/// index in the global tensor, so it is the same on every mesh, and each rank
/// makes only its own elements. On a dry run memory is accounted and nothing is
/// filled. For each mesh that deferred parameters are on, its ranks compare
/// what they make over the side channel, once: all of them call it.
/// \pre the parameters have names
/// \error before anything is done, naming a parameter that cannot be filled:
///     kFailedPrecondition if its layout holds partial sums, kInvalidArgument
///     if its initializer does not fit it (CheckInitializer); kInvalidArgument
///     naming two ranks whose seeds or parameters differ; what the engine says.
absl::Status Materialize(absl::Span<Parameter* const> parameters,
                         const MaterializeOptions& options);

/// The first half of Materialize, for who fills the parameters otherwise: gives
/// memory (MemoryClass::kParameter) of undefined content to every deferred
/// storage, once where several parameters view it.
void LeaseParameters(absl::Span<Parameter* const> parameters);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_MATERIALIZE_H_
