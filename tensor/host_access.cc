// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/host_access.h"

#include <cstdint>

namespace crosshatch {

bool IsHostAddressable(const Tensor& tensor) {
  // Offloaded tensors are in host memory on every device.
  return RankContext::Current().backend().host_addressable() ||
         tensor.device().is_cpu();
}

void CopyToHost(const Tensor& tensor, void* to) {
  CH_CHECK(tensor.is_contiguous() && !IsHostAddressable(tensor))
      << "CopyToHost of " << tensor.Describe();
  internal::Launch(
      &KernelTable::to_host,
      TransferArgs{.to = to,
                   .from = tensor.raw_data(),
                   .bytes = tensor.numel() * SizeOf(tensor.dtype())});
}

HostView::HostView(const Tensor& tensor) : tensor_(tensor) {
  CH_CHECK(!tensor.is_distributed() && !tensor.device().is_meta())
      << "a view by the host of " << tensor.Describe()
      << ", whose elements are not all here";
  RankContext& context = RankContext::Current();
  Stream& stream = context.current_stream();
  const auto* const first =
      static_cast<const std::byte*>(internal::AddressForHost(tensor));
  if (IsHostAddressable(tensor) || first == nullptr) {
    stream.Synchronize();
    first_ = first;
    return;
  }
  // Copies from the lowest element to the highest, including gaps.
  const int64_t element = SizeOf(tensor.dtype());
  int64_t below = 0;
  int64_t above = 0;
  for (size_t d = 0; d < tensor.sizes().size(); ++d) {
    const int64_t extent = (tensor.sizes()[d] - 1) * tensor.strides()[d];
    (extent < 0 ? below : above) += extent * element;
  }
  const int64_t bytes = above - below + element;
  staging_ =
      context.host_allocator().Allocate(bytes, context.memory_class(), stream);
  internal::Launch(&KernelTable::to_host, TransferArgs{.to = staging_.data(),
                                                       .from = first + below,
                                                       .bytes = bytes});
  stream.Synchronize();
  first_ = staging_.data() - below;
}

}  // namespace crosshatch
