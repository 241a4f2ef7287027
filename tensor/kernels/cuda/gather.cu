// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "crosshatch/tensor/kernels/cuda/complain.cuh"
#include "crosshatch/tensor/kernels/cuda/elementwise.cuh"
#include "crosshatch/tensor/kernels/cuda/entry_points.h"
#include "crosshatch/tensor/kernels/cuda/indexed.cuh"

namespace crosshatch::internal {
namespace {

/// Operands: the index, src without the indexed dim, out.
__global__ void __launch_bounds__(256)
    GatherKernel(Strided<3> strided, IndexedPlaces places) {
  for (int64_t v = GlobalThread(); v < strided.vectors; v += GlobalThreads()) {
    int64_t offsets[3];
    strided.Locate(v, offsets);
    const int64_t place =
        places.Of(strided.data[0], strided.dtypes[0], offsets[0]);
    const bool here = places.IsHere(place);
    CopyBits(strided.data[2], offsets[2], here ? strided.data[1] : nullptr,
             offsets[1] + place * places.stride, SizeOf(strided.dtypes[2]));
  }
}

}  // namespace

void CudaGather(const GatherArgs& args, KernelContext& context) {
  int64_t beside[kMaxKernelDims];
  std::copy(args.src.strides, args.src.strides + kMaxKernelDims, beside);
  beside[args.at.dim] = 0;
  const auto strided =
      MakeStrided(args.shape,
                  {AsOperand(args.index),
                   {const_cast<void*>(args.src.data), args.src.dtype, beside},
                   AsOperand(args.out)},
                  1);
  LaunchKernel("gather", &GatherKernel, GeometryOfItems(strided.vectors),
               context, strided,
               PlacesOf(args.at, args.src.strides[args.at.dim], context));
}

}  // namespace crosshatch::internal
