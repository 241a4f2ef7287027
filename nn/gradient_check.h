// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_GRADIENT_CHECK_H_
#define CROSSHATCH_NN_GRADIENT_CHECK_H_

/// \file
/// What an optimizer asks before it steps.

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "crosshatch/nn/parameter.h"

namespace crosshatch::nn {

/// Checks what is listed to be updated: some parameters, none null, each once.
/// \param who for messages: "AdamW"
void CheckListed(const char* who, absl::Span<Parameter* const> parameters);

/// OK if a step with the gradients of `parameters` would be one of the whole
/// job: some have a gradient, none has one that waits for its reduction, and
/// none holds other values for a while (Ema::SwapIn).
/// A rank among several that has no gradient of parameters that no runtime
/// shards is warned of on standard error, once: errors read what all ranks
/// share. With CROSSHATCH_DEBUG=replicas it compares the replicas of parameters
/// and gradients too, and is called by all ranks.
///
/// \param what for messages: "AdamW::Step"
/// \error kFailedPrecondition naming parameters and what to do.
absl::Status CheckGradients(const char* what,
                            absl::Span<Parameter* const> parameters);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_GRADIENT_CHECK_H_
