// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstddef>
#include <cstdint>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cuda/cuda_api.cuh"
#include "crosshatch/tensor/kernels/cuda/cuda_kernels.h"
#include "crosshatch/tensor/kernels/kernel_testutil.h"

namespace crosshatch {
namespace {

// A stream whose kernels run when they are issued, on memory of the process.
struct TestStream {
  explicit TestStream(uint64_t order_of_threads) {
    cudaStream_t stream = nullptr;
    internal::CheckCuda(
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
        "cudaStreamCreateWithFlags");
    emulation::SetThreadOrder(stream, order_of_threads);
    context.stream = stream;
    context.scratch = scratch;
    context.complaint = &complaint;
  }

  alignas(256) std::byte scratch[internal::kScratchBytes];
  internal::Complaint complaint;
  internal::CudaKernelContext context;
};

// With threads in order, then in orders that a seed gives.
class EmulatedCuda final : public kernel_test::Device {
 public:
  const KernelTable& kernels() const override { return CudaKernels(); }
  int ways() const override { return 2; }
  KernelContext& ContextOf(int way) const override {
    return StreamOf(way).context;
  }
  void Check(int way) const override {
    const internal::Complaint& complaint = StreamOf(way).complaint;
    CH_CHECK(complaint.kind == internal::ComplaintKind::kNone)
        << internal::TextOf(complaint);
  }

 private:
  static TestStream& StreamOf(int way) {
    static const std::array<TestStream*, 2> streams = {new TestStream(0),
                                                       new TestStream(1)};
    return *streams[static_cast<size_t>(way)];
  }
};

[[maybe_unused]] const bool kIsSet = [] {
  static const EmulatedCuda cuda;
  kernel_test::SetDevice(&cuda);
  return true;
}();

}  // namespace
}  // namespace crosshatch
