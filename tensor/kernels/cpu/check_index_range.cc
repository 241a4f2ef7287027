// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cpu/entry_points.h"
#include "crosshatch/tensor/kernels/cpu/indices.h"

namespace crosshatch::internal {
namespace {

template <typename I>
void CheckAs(const CheckIndexRangeArgs& args) {
  const I* const indices = static_cast<const I*>(args.indices);
  for (int64_t i = 0; i < args.count; ++i) {
    const int64_t index = indices[i];
    CH_CHECK((index >= 0 && index < args.bound) || index == args.ignored)
        << args.op << ": " << args.index << " " << index << " at " << i
        << " is out of range: there are " << args.bound << " " << args.named;
  }
}

}  // namespace

void CpuCheckIndexRange(const CheckIndexRangeArgs& args,
                        KernelContext& /*context*/) {
  DispatchIndices({.op = args.op}, args.dtype,
                  [&args](auto zero) { CheckAs<decltype(zero)>(args); });
}

}  // namespace crosshatch::internal
