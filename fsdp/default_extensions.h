// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_DEFAULT_EXTENSIONS_H_
#define CROSSHATCH_FSDP_DEFAULT_EXTENSIONS_H_

/// \file
/// The extensions that FullyShard uses if FullyShardOptions::extension is not
/// set. They are not in extensions/, because this package must not depend on
/// it.

#include "crosshatch/fsdp/shard_extension.h"

namespace crosshatch::fsdp {

/// Returns the extension for calls of FullyShard whose parameters are all plain
/// tensors. It shards them on the mesh passed to FullyShard.
const ShardExtension& PlainExtension();

/// Returns the extension for calls with a parameter that is distributed over
/// another axis (tensor parallelism). extensions/dtensor_extensions.h is its
/// public name and states its rules.
const ShardExtension& DTensorExtension();

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_DEFAULT_EXTENSIONS_H_
