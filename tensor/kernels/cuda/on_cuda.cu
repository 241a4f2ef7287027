// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cuda/cuda_api.cuh"
#include "crosshatch/tensor/kernels/cuda/cuda_kernels.h"
#include "crosshatch/tensor/kernels/kernel_testutil.h"

namespace crosshatch {
namespace {

// Returns host memory that devices can access.
void* Pinned(size_t bytes) {
  void* data = nullptr;
  internal::CheckCuda(cudaHostAlloc(&data, bytes, cudaHostAllocPortable),
                      "cudaHostAlloc");
  return data;
}

// A synchronous stream: kernels have run when the launch returns.
struct TestStream {
  explicit TestStream(bool in_other_order)
      : complaint(new (Pinned(sizeof(internal::Complaint)))
                      internal::Complaint) {
    cudaStream_t stream = nullptr;
    internal::CheckCuda(
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
        "cudaStreamCreateWithFlags");
#if defined(CROSSHATCH_CUDA_EMULATION)
    emulation::SetThreadOrder(stream, in_other_order ? 1 : 0);
#else
    static_cast<void>(in_other_order);
#endif
    context.stream = stream;
    internal::CheckCuda(cudaMalloc(&context.scratch, internal::kScratchBytes),
                        "cudaMalloc");
    context.complaint = complaint;
  }

  internal::Complaint* const complaint;
  internal::CudaKernelContext context;
};

// Runs under emulation in thread order, then in seeded orders; on a device
// twice.
class Cuda final : public kernel_test::Device {
 public:
  const KernelTable& kernels() const override { return CudaKernels(); }
  int ways() const override { return 2; }
  KernelContext& ContextOf(int way) const override {
    return StreamOf(way).context;
  }
  void Check(int way) const override {
    const internal::Complaint& complaint = *StreamOf(way).complaint;
    CH_CHECK(complaint.kind == internal::ComplaintKind::kNone)
        << internal::TextOf(complaint);
  }
  void* Allocate(size_t bytes) const override { return Pinned(bytes); }
  void Free(void* data) const override {
    internal::CheckCuda(cudaFreeHost(data), "cudaFreeHost");
  }

 private:
  static TestStream& StreamOf(int way) {
    static const std::array<TestStream*, 2> streams = {new TestStream(false),
                                                       new TestStream(true)};
    return *streams[static_cast<size_t>(way)];
  }
};

[[maybe_unused]] const bool kIsSet = [] {
  // The runtime reads it in its first call. Tests require synchronous launches.
  setenv("CUDA_LAUNCH_BLOCKING", "1", /*replace=*/1);
  static const Cuda cuda;
  kernel_test::SetDevice(&cuda);
  return true;
}();

}  // namespace
}  // namespace crosshatch
