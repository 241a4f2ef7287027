// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_LAUNCH_KERNEL_H_
#define CROSSHATCH_TENSOR_LAUNCH_KERNEL_H_

/// \file
/// Launches a program's own kernels, for the Forward of its ops
/// (docs/write_an_op.md).

#include <utility>

#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch {

/// Issues `work` to the current stream like the library's own kernels. It runs
/// after all that was issued before, perhaps on another thread and after the
/// caller has continued. A dry run does not run it. A rank that is poisoned
/// when its turn comes skips it.
///
/// \param work called as work(KernelContext&). It captures addresses and plain
///     values; their tensors may be dropped once it is issued. On the CPU it
///     computes, possibly in parts on the context's pool.
template <typename F>
void LaunchKernel(F work) {
  RankContext& context = RankContext::Current();
  if (context.dry_run()) return;
  context.current_stream().Launch(
      [work = std::move(work), &context](KernelContext& on) {
        if (!context.poisoned()) work(on);
      });
}

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_LAUNCH_KERNEL_H_
