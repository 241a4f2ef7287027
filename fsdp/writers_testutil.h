// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_WRITERS_TESTUTIL_H_
#define CROSSHATCH_FSDP_WRITERS_TESTUTIL_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/nn/module.h"

namespace crosshatch::fsdp {

/// A way to write all parameters of a sharded model.
struct Writer {
  std::string name;
  std::function<absl::Status(World& world, nn::Module& model)> write;
};

/// Doubles this rank's shard of every parameter of `model`.
absl::Status WriteLocalParts(nn::Module& model);

/// Returns the writers "AdamW", "Summon" (SummonFullParameters), "LocalParts"
/// (WriteLocalParts) and "SetData" (new tensors with the same values).
std::vector<Writer> Writers();

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_WRITERS_TESTUTIL_H_
