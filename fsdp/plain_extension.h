// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_PLAIN_EXTENSION_H_
#define CROSSHATCH_FSDP_PLAIN_EXTENSION_H_

#include "crosshatch/fsdp/shard_extension.h"

namespace crosshatch::fsdp {

/// What FSDP does by itself: parameters are plain tensors, sharded on the mesh
/// that FullyShard is given. A DTensor is an error that says which option to
/// set.
const ShardExtension& PlainExtension();

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_PLAIN_EXTENSION_H_
