// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_OPTIM_GRADIENT_CHECK_H_
#define CROSSHATCH_NN_OPTIM_GRADIENT_CHECK_H_

/// \file
/// Checks before a step of an optimizer.

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "crosshatch/nn/parameter.h"

namespace crosshatch::nn {

/// Checks that no parameter is null or listed twice.
/// \param who for messages: "AdamW".
/// \returns shared ownership of the parameters that a std::shared_ptr owns,
/// such as
///     those of modules. Others must outlive the caller.
std::vector<std::shared_ptr<Parameter>> ShareListed(
    const char* who, absl::Span<Parameter* const> parameters);

/// Follows the name of a gradient that is to be reduced over ranks before it is
/// used (Parameter::gradient_is_pending).
extern const char kNotReduced[];

/// Returns OK if a step can use the gradients of `parameters`: some have a
/// gradient, none has one that is not reduced yet, and none has temporary
/// values (Ema::SwapIn). One rank of several may have no parameters, like a
/// pipeline stage without any. If one rank of several has no gradients of
/// parameters that no runtime shards, it prints a warning once, because errors
/// depend on shared facts only. With CROSSHATCH_DEBUG=replicas it also compares
/// replicas of parameters and gradients, and all ranks must call it.
///
/// \param what for messages: "AdamW::Step".
/// \error kFailedPrecondition naming parameters and what to do.
absl::Status CheckGradients(const char* what,
                            absl::Span<Parameter* const> parameters);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_OPTIM_GRADIENT_CHECK_H_
