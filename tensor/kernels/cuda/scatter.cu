// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cuda/elementwise.cuh"
#include "crosshatch/tensor/kernels/cuda/entry_points.h"
#include "crosshatch/tensor/kernels/cuda/indexed.cuh"

namespace crosshatch::internal {
namespace {

/// The indexed dim. One thread processes all of it, in order.
struct Lane {
  int64_t length;
  int64_t index_stride;
  int64_t src_stride;
};

/// Operands: the index, src and out without the indexed dim. C: the type of the
/// sums.
template <typename C, bool kAccumulate>
__global__ void __launch_bounds__(256)
    ScatterKernel(Strided<3> strided, Lane lane, IndexedPlaces places) {
  const DType dtype = strided.dtypes[2];
  for (int64_t v = GlobalThread(); v < strided.vectors; v += GlobalThreads()) {
    int64_t offsets[3];
    strided.Locate(v, offsets);
    for (int64_t j = 0; j < lane.length; ++j) {
      const int64_t place = places.Of(strided.data[0], strided.dtypes[0],
                                      offsets[0] + j * lane.index_stride);
      if (!places.IsHere(place)) continue;
      const int64_t from = offsets[1] + j * lane.src_stride;
      const int64_t to = offsets[2] + place * places.stride;
      if constexpr (kAccumulate) {
        StoreElement<C>(
            strided.data[2], dtype, to,
            Plus(LoadElement<C>(strided.data[2], dtype, to),
                 LoadElement<C>(strided.data[1], strided.dtypes[1], from)));
      } else {
        CopyBits(strided.data[2], to, strided.data[1], from, SizeOf(dtype));
      }
    }
  }
}

}  // namespace

void CudaScatter(const ScatterArgs& args, KernelContext& context) {
  const int dim = args.at.dim;
  // Without the dim, all of which a thread processes.
  KernelShape lanes = args.shape;
  lanes.sizes[dim] = std::min<int64_t>(lanes.sizes[dim], 1);
  int64_t beside[kMaxKernelDims];
  std::copy(args.out.strides, args.out.strides + kMaxKernelDims, beside);
  beside[dim] = 0;
  const auto strided = MakeStrided(lanes,
                                   {AsOperand(args.index),
                                    AsOperand(args.src),
                                    {args.out.data, args.out.dtype, beside}},
                                   1);
  const Lane lane = {args.shape.sizes[dim], args.index.strides[dim],
                     args.src.strides[dim]};
  const IndexedPlaces places =
      PlacesOf(args.at, args.out.strides[dim], context);
  const LaunchGeometry geometry = GeometryOfItems(strided.vectors);
  const auto launch = [&](auto kernel) {
    LaunchKernel("scatter", kernel, geometry, context, strided, lane, places);
  };
  if (args.mode == WriteMode::kOverwrite) {
    return launch(&ScatterKernel<int64_t, false>);
  }
  switch (args.out.dtype) {
    case DType::kFloat32:
      return launch(&ScatterKernel<float, true>);
    case DType::kFloat64:
      return launch(&ScatterKernel<double, true>);
    default:
      CH_CHECK(args.out.dtype == DType::kInt32 ||
               args.out.dtype == DType::kInt64)
          << args.at.op << " kernel: += of " << Name(args.out.dtype);
      return launch(&ScatterKernel<int64_t, true>);
  }
}

}  // namespace crosshatch::internal
