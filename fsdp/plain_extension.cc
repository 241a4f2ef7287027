// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/plain_extension.h"

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
};

}  // namespace

const ShardExtension& PlainExtension() {
  static const Plain extension;
  return extension;
}

}  // namespace crosshatch::fsdp
