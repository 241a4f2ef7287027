// SPDX-License-Identifier: Apache-2.0
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <cstddef>
#include <cstdint>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_segmented_radix_sort.cuh>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cuda/cuda_api.cuh"
#include "crosshatch/tensor/kernels/cuda/stable_sort.h"

namespace crosshatch::internal {
namespace {

/// Where segment i starts.
struct SegmentStart {
  int64_t length;
  __host__ __device__ int64_t operator()(int64_t segment) const {
    return segment * length;
  }
};

}  // namespace

void StableSort(const StableSortArgs& args, KernelContext& context) {
  const int64_t count = args.segments * args.length;
  if (count == 0) return;
  CH_CHECK(args.workspace != nullptr) << "stable_sort: no workspace";
  auto bytes =
      static_cast<size_t>(StableSortWorkspaceBytes(args.segments, args.length));
  const cudaStream_t stream = StreamOf(context);
  cudaError_t error = cudaSuccess;
  if (args.segments == 1) {
    error = cub::DeviceRadixSort::SortPairs(
        args.workspace, bytes, args.keys, args.sorted_keys, args.values,
        args.sorted_values, count, 0, args.key_bits, stream);
  } else {
    const auto starts = thrust::make_transform_iterator(
        thrust::make_counting_iterator(int64_t{0}), SegmentStart{args.length});
    error = cub::DeviceSegmentedRadixSort::SortPairs(
        args.workspace, bytes, args.keys, args.sorted_keys, args.values,
        args.sorted_values, count, args.segments, starts, starts + 1, 0,
        args.key_bits, stream);
  }
  // If its workspace is too small, CUB reports an invalid value.
  CheckCuda(error, "CUB's radix sort");
}

}  // namespace crosshatch::internal
