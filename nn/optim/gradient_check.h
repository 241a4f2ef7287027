// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_OPTIM_GRADIENT_CHECK_H_
#define CROSSHATCH_NN_OPTIM_GRADIENT_CHECK_H_

/// \file
/// What an optimizer asks before it steps.

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "crosshatch/nn/parameter.h"

namespace crosshatch::nn {

/// Checks what is listed to be updated: none null, each once.
/// \param who for messages: "AdamW"
/// \returns what keeps `parameters` alive, whatever becomes of their modules:
///     shared ownership of those that a std::shared_ptr owns, as modules' are.
///     Others outlive the list's holder.
std::vector<std::shared_ptr<Parameter>> ShareListed(
    const char* who, absl::Span<Parameter* const> parameters);

/// Follows the name of a gradient that is to be reduced over ranks before it is
/// used (Parameter::gradient_is_pending).
extern const char kNotReduced[];

/// OK if a step with the gradients of `parameters` would be one of the whole
/// job: some have a gradient, none has one that waits for its reduction, and
/// none holds other values for a while (Ema::SwapIn). A rank among several may
/// have no parameters, as a pipeline stage without any.
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

#endif  // CROSSHATCH_NN_OPTIM_GRADIENT_CHECK_H_
