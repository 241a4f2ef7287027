// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_LAUNCH_H_
#define CROSSHATCH_TENSOR_LAUNCH_H_

/// \file
/// LaunchKernel: issues a program's own kernels, for the Forward of its ops
/// (docs/write_an_op.md). Launch: issues a device's kernels. Ops, optimizers
/// and random fills all use it, so that for all work: a dry run does nothing, a
/// poisoned rank skips it, and arguments are copied before the caller
/// continues. (A collective engine that reduces while it moves data calls
/// kernels within its own work.)
///
/// Launch takes addresses, not blocks. Code that issues to another stream than
/// the block's (StreamScope) records the use with Block::UsedOn.

#include <cstdint>
#include <utility>

#include "crosshatch/tensor/allocator.h"
#include "crosshatch/tensor/kernels/kernel_table.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/step_capture.h"
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
  if (context.dry_run()) {
    if (const auto record = context.kernels().record_own; record != nullptr) {
      context.current_stream().Launch(record);
    }
    return;
  }
  context.current_stream().Launch(
      [work = std::move(work), &context](KernelContext& on) {
        if (!context.poisoned()) work(on);
      });
}

namespace internal {

/// Issues the device's `kernel`, e.g. &KernelTable::copy, to the current
/// stream. A queue copies the arguments, which are addresses and plain values.
/// If the rank is poisoned when the kernel's turn comes, it is skipped, because
/// it may read what a failed collective did not write.
template <typename Family, typename Args>
void Launch(void (*Family::*kernel)(const Args&, KernelContext&),
            const Args& args) {
  RankContext& context = RankContext::Current();
  if (context.dry_run() && context.kernels().record_own == nullptr) return;
  Stream& stream = context.current_stream();
  const auto run = context.kernels().*kernel;
  if (KernelContext* const on = stream.inline_context(); on != nullptr) {
    if (!context.poisoned()) run(args, *on);
    return;
  }
  stream.Launch([args, run, &context](KernelContext& on) {
    if (!context.poisoned()) run(args, on);
  });
}

/// Issues the device's `kernel` with the arguments that `make` returns, for
/// kernels whose arguments change from step to step. If the step is captured,
/// `make` is called again before each replay, and must stay callable.
template <typename Family, typename Args, typename Make>
void LaunchEachStep(void (*Family::*kernel)(const Args&, KernelContext&),
                    Make make) {
  RankContext& context = RankContext::Current();
  StepCapture* const capture = context.capture();
  if (capture == nullptr || context.poisoned()) {
    Launch(kernel, make());
    return;
  }
  capture->LaunchEachStep(
      context.current_stream(),
      [run = context.kernels().*kernel,
       make = std::move(make)](KernelContext& on) mutable { run(make(), on); });
}

/// Returns workspace for one kernel. The lease may end as soon as the kernel is
/// issued, because the next lease of the memory is ordered after it.
inline Block Workspace(int64_t bytes) {
  if (bytes == 0) return Block();
  RankContext& context = RankContext::Current();
  return context.allocator().Allocate(bytes, context.memory_class(),
                                      context.current_stream());
}

/// Launches a kernel with the workspace that `bytes_of` returns. Sets
/// args.workspace.
template <typename Family, typename Args>
void LaunchWithWorkspace(int64_t (*Family::*bytes_of)(const Args&),
                         void (*Family::*kernel)(const Args&, KernelContext&),
                         Args& args) {
  const KernelTable& kernels = RankContext::Current().kernels();
  const Block workspace = Workspace((kernels.*bytes_of)(args));
  args.workspace = workspace.data();
  Launch(kernel, args);
}

}  // namespace internal
}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_LAUNCH_H_
