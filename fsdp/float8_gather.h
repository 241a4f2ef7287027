// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_FLOAT8_GATHER_H_
#define CROSSHATCH_FSDP_FLOAT8_GATHER_H_

/// \file
/// Gather hooks that all-gather the weights of float8 linear layers in float8:
/// docs/float8.md.

#include <functional>
#include <memory>

#include "crosshatch/fsdp/gather_hooks.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/nn/parameter.h"

namespace crosshatch::fsdp {

/// Returns FullyShardOptions::gather_hooks for `model`, which
/// nn::ConvertToFloat8Training has converted: hooks for the weights of layers
/// with the tensorwise recipe, null for all other parameters. (A rowwise weight
/// has different scales in forward and in backward.)
///
/// The scales of all these weights are computed together, with one reduction
/// over ranks, at the first all-gather of each outermost forward and of each
/// explicit Unshard: once per step without gradient accumulation. It
/// corresponds to torchao's precompute_float8_dynamic_scale_for_fsdp.
///
/// Pass the same function to all FullyShard calls of the model.
std::function<std::shared_ptr<const GatherHooks>(const nn::Parameter&)>
Float8GatherHooks(nn::Module& model);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_FLOAT8_GATHER_H_
