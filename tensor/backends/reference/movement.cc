// SPDX-License-Identifier: Apache-2.0
// Copies and fills.
#include <cstddef>
#include <cstring>
#include <vector>

#include "crosshatch/tensor/backends/reference/elements.h"
#include "crosshatch/tensor/backends/reference/entry_points.h"
#include "crosshatch/tensor/kernels/reference/address.h"

namespace crosshatch::reference {

void CopyKernel(const CopyArgs& args, KernelContext& /*context*/) {
  const DType from = args.src.dtype;
  const DType to = args.out.dtype;
  const std::vector<int64_t> sources = Offsets(args.shape, args.src.strides);
  const std::vector<int64_t> outs = Offsets(args.shape, args.out.strides);
  for (size_t i = 0; i < outs.size(); ++i) {
    if (from == to && args.mode == WriteMode::kOverwrite) {
      CopyElement(args.out.data, outs[i], args.src.data, sources[i], to);
    } else if (IsInteger(from) && IsInteger(to)) {
      PutInteger(args.out.data, to, outs[i],
                 ReadInteger(args.src.data, from, sources[i]), args.mode);
    } else {
      Put(args.out.data, to, outs[i],
          ReadElement(args.src.data, from, sources[i]), args.mode);
    }
  }
}

void FillKernel(const FillArgs& args, KernelContext& /*context*/) {
  for (int64_t offset : Offsets(args.shape, args.out.strides)) {
    WriteElement(args.out.data, args.out.dtype, offset, Real{args.value});
  }
}

void ArangeKernel(const ArangeArgs& args, KernelContext& /*context*/) {
  for (int64_t i = 0; i < args.count; ++i) {
    WriteElement(args.out, args.dtype, i,
                 Real{args.start + static_cast<double>(i) * args.step});
  }
}

void TransferKernel(const TransferArgs& args, KernelContext& /*context*/) {
  std::memcpy(HostAddress(args.to), HostAddress(args.from),
              static_cast<size_t>(args.bytes));
}

}  // namespace crosshatch::reference
