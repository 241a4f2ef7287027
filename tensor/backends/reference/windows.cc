// SPDX-License-Identifier: Apache-2.0
// Windows of images.
#include "crosshatch/tensor/kernels/reference/windows.h"

#include <cstddef>
#include <vector>

#include "crosshatch/tensor/backends/reference/elements.h"
#include "crosshatch/tensor/backends/reference/entry_points.h"

namespace crosshatch::reference {

void UnfoldKernel(const WindowsArgs& args, KernelContext& /*context*/) {
  const std::vector<int64_t> from = ElementsOfWindows(args);
  for (size_t i = 0; i < from.size(); ++i) {
    const auto to = static_cast<int64_t>(i);
    if (from[i] < 0) {
      ZeroElement(args.out, to, args.dtype);
    } else {
      CopyElement(args.out, to, args.in, from[i], args.dtype);
    }
  }
}

void FoldKernel(const WindowsArgs& args, KernelContext& /*context*/) {
  const std::vector<int64_t> to = ElementsOfWindows(args);
  const Reals values =
      ReadRun(args.in, args.dtype, static_cast<int64_t>(to.size()));
  Reals sums(static_cast<size_t>(args.images * args.channels * args.rows.size *
                                 args.cols.size));
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i] >= 0) sums[static_cast<size_t>(to[i])] += values[i];
  }
  PutRun(args.out, args.dtype, 0, sums);
}

}  // namespace crosshatch::reference
