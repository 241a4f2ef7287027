// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/check_buffers.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/verify.h"

namespace crosshatch::nn {

absl::Status CheckBuffers(Module& module, const DeviceMesh& mesh) {
  for (const auto& [name, buffer] : module.NamedBuffers()) {
    const Tensor& data = buffer->data();
    if (!buffer->has_memory()) continue;
    const std::string what = absl::StrCat("buffer ", buffer->name());
    const Tensor local = LocalTensor(data);
    if (data.is_distributed()) {
      CH_RETURN_IF_ERROR(CompareReplicas(what, local, MeshOf(data),
                                         LayoutOf(data), data.sizes()));
    }
    CH_RETURN_IF_ERROR(CompareReplicas(
        what, local, mesh, Layout::Replicated(mesh.layout(), local.ndim()),
        local.sizes()));
  }
  return absl::OkStatus();
}

}  // namespace crosshatch::nn
