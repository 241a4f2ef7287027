// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/plain_extension.h"

#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/redistribute.h"

namespace crosshatch::fsdp {
namespace {

class PlainForm final : public ForwardForm {
 public:
  Tensor Wrap(Tensor local) const override { return local; }
};

class Plain final : public ShardExtension {
 public:
  Tensor LocalOf(const Tensor& parameter) const override { return parameter; }

  std::shared_ptr<const ForwardForm> FormOf(const Tensor&) const override {
    return std::make_shared<PlainForm>();
  }

  absl::StatusOr<ShardedForm> Chunk(const Tensor& parameter,
                                    const DeviceMesh& fsdp_mesh,
                                    int dim) const override {
    if (parameter.is_distributed()) {
      return absl::InvalidArgumentError(
          "is a DTensor; set FullyShardOptions::extension (for tensor "
          "parallelism DTensorExtensions::Create())");
    }
    return ShardedForm{fsdp_mesh,
                       Layout::Replicated(fsdp_mesh.layout(), parameter.ndim())
                           .WithShard(fsdp_mesh.ndim() - 1, dim)};
  }

  absl::StatusOr<Tensor> AllGather(const Tensor& sharded,
                                   const DeviceMesh&) const override {
    const Layout& layout = LayoutOf(sharded);
    return LocalTensor(Redistribute(
        sharded, Layout::Replicated(layout.mesh(), layout.ndim())));
  }
};

}  // namespace

const ShardExtension& PlainExtension() {
  static const Plain extension;
  return extension;
}

}  // namespace crosshatch::fsdp
