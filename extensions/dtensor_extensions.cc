// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/extensions/dtensor_extensions.h"

#include "crosshatch/fsdp/default_extensions.h"

namespace crosshatch {

std::shared_ptr<const DTensorExtensions> DTensorExtensions::Create() {
  return std::make_shared<DTensorExtensions>();
}

Tensor DTensorExtensions::LocalOf(const Tensor& parameter) const {
  return fsdp::DTensorExtension().LocalOf(parameter);
}

std::shared_ptr<const fsdp::ForwardForm> DTensorExtensions::FormOf(
    const Tensor& parameter) const {
  return fsdp::DTensorExtension().FormOf(parameter);
}

absl::StatusOr<fsdp::ShardedForm> DTensorExtensions::Chunk(
    const Tensor& parameter, const DeviceMesh& fsdp_mesh, int dim) const {
  return fsdp::DTensorExtension().Chunk(parameter, fsdp_mesh, dim);
}

}  // namespace crosshatch
