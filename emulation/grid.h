// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_GRID_H_
#define CROSSHATCH_EMULATION_GRID_H_

/// \file
/// Runs a kernel of CUDA on the calling thread: the threads of a block are
/// fibers, in an order drawn from a seed, and the blocks come one after
/// another. What a device would leave undefined, or hang in, ends the program
/// with a message that names the kernel, the block and the thread.

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"

namespace crosshatch::emulation {

inline constexpr int kWarpSize = 32;
/// What every device from sm_80 on has without being asked.
inline constexpr int kMaxThreadsPerBlock = 1024;
inline constexpr size_t kMaxSharedBytes = size_t{48} << 10;

/// A position or a size, as CUDA's uint3 and dim3.
struct Dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

struct Launch {
  /// In messages.
  const char* kernel = "";
  Dim3 grid;
  Dim3 block;
  /// Of memory that the launch gives each block beside its own.
  size_t dynamic_shared_bytes = 0;
  /// 0: blocks and threads run in the order of their numbers.
  uint64_t seed = 0;
};

/// Runs `thread` once for each thread of the launch.
void RunGrid(const Launch& launch, absl::FunctionRef<void()> thread);

/// \name What a thread of a kernel calls
/// All but the positions check that a kernel is running.
/// @{

extern thread_local constinit Dim3 thread_index;
extern thread_local constinit Dim3 block_index;
extern thread_local constinit Dim3 block_size;
extern thread_local constinit Dim3 grid_size;

/// Where a thread of a kernel waits, in messages.
struct Place {
  const char* file;
  int line;
};

/// Waits for all threads of the block, each of which must come to this place.
void SyncThreads(Place place);

/// Ops of the lanes of `mask`, of the calling thread's warp: each of them must
/// come to one of the same kind with the same mask.
enum class WarpOp { kSync, kShuffle, kBallot };

/// Waits for the lanes. A shuffle gives the `value` of lane `from`, which is of
/// the mask; a ballot gives the lanes whose value is not 0.
uint64_t WarpExchange(WarpOp op, unsigned mask, uint64_t value, int from,
                      Place place);
/// The calling thread's lane in its warp.
int Lane();

/// Memory that the block's threads share: the same for all calls with `tag`.
/// All of its bits are set when the block starts.
void* SharedMemory(const void* tag, size_t bytes, size_t alignment);
/// The launch's dynamic_shared_bytes.
void* DynamicSharedMemory();

/// @}

/// Ends the program: a thread loads or stores `bytes` bytes at once at an
/// address that is not a multiple of that.
[[noreturn]] void FailMisaligned(const void* address, size_t bytes);
/// Ends the program: a thread loads or stores there, and its device cannot
/// (reach.h).
[[noreturn]] void FailOutOfReach(const void* address, size_t bytes);

/// "kernel copy, block (1, 0, 0), thread (5, 0, 0)" of the calling thread.
/// Empty outside of kernels.
const char* WhereInGrid();

}  // namespace crosshatch::emulation

#endif  // CROSSHATCH_EMULATION_GRID_H_
