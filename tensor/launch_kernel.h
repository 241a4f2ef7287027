// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_LAUNCH_KERNEL_H_
#define CROSSHATCH_TENSOR_LAUNCH_KERNEL_H_

/// \file
/// Kernels of a program's own, for the Forward of its ops
/// (docs/write_an_op.md).

#include <utility>

#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch {

/// Issues `work` to the current stream as the library's own kernels are issued:
/// it runs when what was issued before it has run, perhaps after the caller has
/// gone on and on another thread; a dry run does none of it, and a rank that is
/// poisoned when its turn comes skips it.
///
/// \param work called as work(KernelContext&). It holds addresses and plain
///     values; the tensors that they are of may go once it is issued. On the
///     CPU it computes, in parts by the context's pool if it likes to.
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
