// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_HOST_ACCESS_H_
#define CROSSHATCH_TENSOR_HOST_ACCESS_H_

/// \file
/// How the host reads and writes the elements of a tensor. Where it can use the
/// device's addresses nothing is copied; else kernels carry the bytes through
/// host memory.

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

/// Whether the host reaches `tensor`'s memory by its address. \pre it is local
bool IsHostAddressable(const Tensor& tensor);

/// Issues to the current stream: `write`, a callable taking void*, puts the
/// elements of `tensor` (local and contiguous), row-major, where it is told to,
/// and they become the tensor's. Nothing in a dry run and of no elements; a
/// rank that is poisoned by then skips it. The caller bumps the version of what
/// had elements before.
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

/// Issues to the current stream the copy of the elements of `tensor` (local and
/// contiguous, with elements), row-major, to `to`, which is of
/// RankContext::host_allocator. A rank that is poisoned by then skips it. \pre
/// the host cannot address them
void CopyToHost(const Tensor& tensor, void* to);

/// The elements of a tensor where the host can read them.
class HostView {
 public:
  /// Waits for the current stream. `tensor` is local and has memory. Work that
  /// is issued later and writes to the tensor shows or not.
  explicit HostView(const Tensor& tensor);

  /// The first element; the others lie by the tensor's strides. Null where the
  /// tensor has none.
  const void* data() const { return first_; }

 private:
  Tensor tensor_;  // Keeps the memory.
  Block staging_;
  const std::byte* first_ = nullptr;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_HOST_ACCESS_H_
