// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_LAUNCH_H_
#define CROSSHATCH_TENSOR_LAUNCH_H_

/// \file
/// The one way to a device's kernels. Whatever computes, an op, an optimizer or
/// a filler of random values, issues by Launch, and so keeps what holds for all
/// work: a dry run does none, a poisoned rank skips it, and what it needs is
/// copied before the caller goes on. (An engine that reduces while it moves
/// data calls its kernel inside of its own work.)
///
/// Launch takes addresses, and so knows no blocks. Work on a block's own stream
/// needs no more; whoever issues to another stream (StreamScope) tells the
/// block by Block::UsedOn.

#include <cstdint>

#include "crosshatch/tensor/allocator.h"
#include "crosshatch/tensor/kernels/kernel_table.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch::internal {

/// Issues the device's `kernel`, e.g. &KernelTable::copy, to the current
/// stream. The args are copied: they hold addresses and plain values. A rank
/// that is poisoned when the work's turn comes skips it, because what a failed
/// collective did not write may be what it reads.
template <typename Family, typename Args>
void Launch(void (*Family::*kernel)(const Args&, KernelContext&),
            const Args& args) {
  RankContext& context = RankContext::Current();
  if (context.dry_run()) return;
  context.current_stream().Launch(
      [args, run = context.kernels().*kernel, &context](KernelContext& on) {
        if (!context.poisoned()) run(args, on);
      });
}

/// A lease for one kernel: it may end as soon as the kernel is issued, because
/// the next lease of it is ordered after that.
Block Workspace(int64_t bytes);

/// Launch with the workspace that `bytes_of` asks for.
template <typename Family, typename Args>
void LaunchWithWorkspace(int64_t (*Family::*bytes_of)(const Args&),
                         void (*Family::*kernel)(const Args&, KernelContext&),
                         Args args) {
  const KernelTable& kernels = RankContext::Current().kernels();
  const Block workspace = Workspace((kernels.*bytes_of)(args));
  args.workspace = workspace.data();
  Launch(kernel, args);
}

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_LAUNCH_H_
