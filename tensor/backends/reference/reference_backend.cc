// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/backends/reference/reference_backend.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "crosshatch/tensor/backends/cpu/cpu_allocator.h"
#include "crosshatch/tensor/backends/cpu/cpu_stream.h"
#include "crosshatch/tensor/backends/reference/entry_points.h"
#include "crosshatch/tensor/caching_allocator.h"
#include "crosshatch/tensor/kernels/reference/address.h"

namespace crosshatch {
namespace reference {
namespace {

template <typename Args>
int64_t NoWorkspace(const Args& /*args*/) {
  return 0;
}

constexpr KernelTable kKernels = {
    MovementKernels{
        .copy = CopyKernel,
        .fill = FillKernel,
        .arange = ArangeKernel,
        .from_host = TransferKernel,
        .to_host = TransferKernel,
    },
    PointwiseKernels{
        .unary = UnaryKernel,
        .binary = BinaryKernel,
        .where = WhereKernel,
        .silu_mul = SiluMulKernel,
        .silu_mul_backward = SiluMulBackwardKernel,
    },
    ReduceKernels{
        .reduce = ReduceKernel,
    },
    MatMulKernels{
        .matmul_workspace_bytes = NoWorkspace,
        .matmul = MatMulKernel,
    },
    AttentionKernels{
        .attention_workspace_bytes = NoWorkspace,
        .attention = AttentionKernel,
        .attention_backward_workspace_bytes = NoWorkspace,
        .attention_backward = AttentionBackwardKernel,
        .rope = RopeKernel,
    },
    RowKernels{
        .softmax = SoftmaxKernel,
        .softmax_backward = SoftmaxBackwardKernel,
        .rms_norm = RmsNormKernel,
        .rms_norm_backward_workspace_bytes = NoWorkspace,
        .rms_norm_backward = RmsNormBackwardKernel,
        .layer_norm = LayerNormKernel,
        .layer_norm_backward_workspace_bytes = NoWorkspace,
        .layer_norm_backward = LayerNormBackwardKernel,
        .cross_entropy = CrossEntropyKernel,
        .cross_entropy_shard = CrossEntropyShardKernel,
        .cross_entropy_backward = CrossEntropyBackwardKernel,
        .embedding = EmbeddingKernel,
        .embedding_backward_workspace_bytes = NoWorkspace,
        .embedding_backward = EmbeddingBackwardKernel,
    },
    TrainingKernels{
        .adamw = AdamWKernel,
        .random = RandomKernel,
        .accumulate_ranks = AccumulateRanksKernel,
    },
    IndexKernels{
        .gather = GatherKernel,
        .scatter = ScatterKernel,
        .dropout = DropoutKernel,
        .check_index_range = CheckIndexRangeKernel,
    },
    LaneKernels{
        .cumsum = CumSumKernel,
        .sort_workspace_bytes = NoWorkspace,
        .sort = SortKernel,
    },
    WindowKernels{
        .unfold = UnfoldKernel,
        .fold = FoldKernel,
    },
};

class Memory final : public MemorySource {
 public:
  explicit Memory(bool shared) : shared_(shared) {}

  std::byte* Acquire(int64_t bytes) override {
    auto* const data = static_cast<std::byte*>(
        std::aligned_alloc(64, static_cast<size_t>(bytes)));
    return data == nullptr || shared_ ? data : DeviceAddress(data);
  }
  void Release(std::byte* data) override { std::free(HostAddress(data)); }
  void SetAllBits(std::byte* data, int64_t bytes,
                  KernelContext& /*context*/) override {
    std::memset(HostAddress(data), 0xFF, static_cast<size_t>(bytes));
  }

 private:
  const bool shared_;
};

class Backend final : public DeviceBackend {
 public:
  explicit Backend(bool shared)
      : DeviceBackend(Device::Reference(), kKernels,
                      /*host_addressable=*/shared),
        shared_(shared) {}

  std::unique_ptr<Stream> MakeStream(const std::string& name, StreamRole role,
                                     const RankParts& rank) const override {
    return MakeCpuStream(name, role, rank);
  }
  std::unique_ptr<Allocator> MakeAllocator(bool adversarial) const override {
    return MakeCachingAllocator(device(), std::make_unique<Memory>(shared_),
                                adversarial);
  }
  std::unique_ptr<Allocator> MakeHostAllocator(
      bool adversarial) const override {
    return MakeCpuAllocator(adversarial);
  }

 private:
  const bool shared_;
};

}  // namespace
}  // namespace reference

const DeviceBackend& ReferenceBackend() {
  static const reference::Backend backend(/*shared=*/false);
  return backend;
}

const DeviceBackend& SharedReferenceBackend() {
  static const reference::Backend backend(/*shared=*/true);
  return backend;
}

}  // namespace crosshatch
