// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_GRID_H_
#define CROSSHATCH_EMULATION_GRID_H_

/// \file
/// Runs a CUDA kernel on the calling thread. The threads of a block are fibers,
/// in an order drawn from a seed; blocks run one after another. Undefined
/// behaviour and deadlocks end the program with a message that names the
/// kernel, the block and the thread.

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "crosshatch/emulation/async_copies.h"

namespace crosshatch::emulation {

inline constexpr int kWarpSize = 32;
/// What every device from sm_80 on supports, without and with an opt-in.
inline constexpr int kMaxThreadsPerBlock = 1024;
inline constexpr size_t kMaxSharedBytes = size_t{48} << 10;
inline constexpr size_t kMaxOptInSharedBytes = size_t{99} << 10;

/// A position or a size, as CUDA's uint3 and dim3.
struct Dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

struct Launch {
  /// For messages.
  const char* kernel = "";
  Dim3 grid;
  Dim3 block;
  /// Shared memory of a block whose size the launch determines.
  size_t dynamic_shared_bytes = 0;
  /// The seed of the order of blocks and threads. 0 is the order of their
  /// indices.
  uint64_t seed = 0;
  /// The address of the kernel's code (KernelPath).
  const void* code = nullptr;
};

void RunGrid(const Launch& launch, absl::FunctionRef<void()> thread);

/// \name Functions for a kernel's threads
/// All but the positions check that a kernel is running.
/// @{

extern thread_local constinit Dim3 thread_index;
extern thread_local constinit Dim3 block_index;
extern thread_local constinit Dim3 block_size;
extern thread_local constinit Dim3 grid_size;

/// Set when the running thread accesses global memory. Reset when all lanes of
/// its warp wait for each other: until then, they may have diverged. Null
/// outside of kernels.
extern thread_local constinit bool* has_accessed_memory;

/// Of the running thread. Null outside of kernels.
extern thread_local constinit AsyncCopies* async_copies;

/// The source location of a wait, for messages.
struct Place {
  const char* file;
  int line;
};

/// Waits for all threads of the block, which must call it at the same place.
void SyncThreads(Place place);

/// Waits for the thread's asynchronous copies, but those of its latest `groups`
/// groups.
void WaitForCopies(size_t groups, Place place);

/// Ops of the lanes of `mask` in the calling thread's warp. Each of them must
/// call the same kind with the same mask.
enum class WarpOp { kSync, kShuffle, kBallot };

/// Waits for the lanes. A shuffle returns the `value` of lane `from`, which is
/// in the mask. A ballot returns the lanes whose value is not 0.
uint64_t WarpExchange(WarpOp op, unsigned mask, uint64_t value, int from,
                      Place place);
/// Checks that the lanes of the warp have waited for each other since the
/// calling one last accessed global memory. `.aligned` instructions do not wait
/// for lanes that have diverged.
void CheckConverged();
/// Returns the calling thread's lane in its warp.
int Lane();

/// Returns the block's shared memory for `tag`. All of its bits are set when
/// the block starts.
void* SharedMemory(const void* tag, size_t bytes, size_t alignment);
/// Returns the launch's dynamic_shared_bytes.
void* DynamicSharedMemory();

/// @}

/// Ends the program after an access of `bytes` bytes at an address that is not
/// a multiple of `bytes`.
[[noreturn]] void FailMisaligned(const void* address, size_t bytes);
/// Ends the program after an access that the device cannot make (reach.h).
[[noreturn]] void FailOutOfReach(const void* address, size_t bytes);

/// Returns the position of the calling thread, "kernel copy, block (1, 0, 0),
/// thread (5, 0, 0)". Empty outside of kernels.
const char* WhereInGrid();

}  // namespace crosshatch::emulation

#endif  // CROSSHATCH_EMULATION_GRID_H_
