// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_DEFAULT_EXTENSIONS_H_
#define CROSSHATCH_FSDP_DEFAULT_EXTENSIONS_H_

/// \file
/// The extensions that FullyShard uses if FullyShardOptions::extension is not
/// set. They are here, not in extensions/, because this package must not see
/// that one.

#include "crosshatch/fsdp/shard_extension.h"

namespace crosshatch::fsdp {

/// Returns the extension for a call of FullyShard whose parameters are plain
/// tensors: they are sharded on the mesh that FullyShard is given.
const ShardExtension& PlainExtension();

/// Returns the extension for a call with a parameter that is distributed over
/// another axis (tensor parallelism). extensions/dtensor_extensions.h states
/// its rules and is its public name.
const ShardExtension& DTensorExtension();

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_DEFAULT_EXTENSIONS_H_
