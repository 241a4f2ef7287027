// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_HOST_ACCESS_H_
#define CROSSHATCH_TENSOR_HOST_ACCESS_H_

/// \file
/// Reading and writing elements by the host. If the host can use the device's
/// addresses, nothing is copied; otherwise kernels copy through host memory.

#include <cstddef>
#include <memory>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/allocator.h"
#include "crosshatch/tensor/device_backend.h"
#include "crosshatch/tensor/launch.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Returns whether the host can address the memory of `tensor`, which is local.
bool IsHostAddressable(const Tensor& tensor);

/// Issues to the current stream: `write`, a callable taking void*, writes the
/// elements of `tensor` (local and contiguous), row-major, to the given
/// address, from which they are copied to the tensor if needed. Does nothing in
/// a dry run or without elements; a rank that is poisoned by then skips it. The
/// caller bumps the version if the tensor had values before.
template <typename F>
void WriteFromHost(const Tensor& tensor, F write) {
  CH_CHECK(tensor.is_contiguous()) << "WriteFromHost to " << tensor.Describe();
  RankContext& context = RankContext::Current();
  void* const out = tensor.raw_data();
  if (out == nullptr) return;
  const auto issue = [&](void* to) {
    context.current_stream().LaunchHost(
        [to, write = std::move(write), &context](KernelContext&) mutable {
          if (!context.poisoned()) write(to);
        });
  };
  if (IsHostAddressable(tensor)) {
    issue(out);
    return;
  }
  const int64_t bytes = tensor.numel() * SizeOf(tensor.dtype());
  const Block staging = context.host_allocator().Allocate(
      bytes, context.memory_class(), context.current_stream());
  issue(staging.data());
  internal::Launch(
      &KernelTable::from_host,
      TransferArgs{.to = out, .from = staging.data(), .bytes = bytes});
}

/// Issues to the current stream a copy of the elements of `tensor` (local,
/// contiguous, not empty) to `to`, memory of RankContext::host_allocator. A
/// rank that is poisoned by then skips it.
/// \pre !IsHostAddressable(tensor)
void CopyToHost(const Tensor& tensor, void* to);

/// The elements of a tensor in memory that the host can read.
class HostView {
 public:
  /// Waits for the current stream. `tensor` is local and has memory. Whether
  /// later writes to the tensor are visible is undefined.
  explicit HostView(const Tensor& tensor);

  /// Returns the address of the first element, with the tensor's strides; null
  /// without elements.
  const void* data() const { return first_; }

 private:
  Tensor tensor_;  // Keeps the memory.
  Block staging_;
  const std::byte* first_ = nullptr;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_HOST_ACCESS_H_
