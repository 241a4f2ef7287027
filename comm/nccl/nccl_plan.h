// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_NCCL_NCCL_PLAN_H_
#define CROSSHATCH_COMM_NCCL_NCCL_PLAN_H_

/// \file
/// The choice of NCCL calls for a collective: pure functions of data that all
/// members know, so that all choose the same.

#include <cstdint>
#include <vector>

#include "crosshatch/comm/collective.h"
#include "crosshatch/comm/nccl/nccl_options.h"

namespace crosshatch::internal {

enum class NcclWay : uint8_t {
  /// Every member sends each other one its part, in one NCCL group. A kernel
  /// adds sums in the order of ranks. It takes one step for any number of
  /// ranks: for small, uneven or ordered data.
  kSendAndReceive,
  /// NCCL's own collective, on contiguous memory.
  kCollective,
};

/// \param is_consecutive see NcclCuts; equal on all members
NcclWay ChooseNcclWay(const Collective& collective, int size,
                      bool is_consecutive, const NcclOptions& options);

/// The runs of lists that are equal on all members: received in an all-gather,
/// sent in a reduce-scatter.
struct NcclCuts {
  /// The runs of each list. Empty for other kinds, and for lists with too many
  /// runs to send separately.
  std::vector<std::vector<int64_t>> runs;
  /// Whether the lists have one length and are consecutive in memory.
  bool is_consecutive = false;
  /// Identifies the runs; 0 if `runs` is empty.
  uint64_t hash = 0;
};

NcclCuts CutsOf(const Collective& collective);

/// Returns the bytes of device memory for the others' summands on member `me`,
/// if a sum is made by sends and receives; otherwise 0. A dry run accounts for
/// them. It has no addresses, and takes consecutive lists for separate ones.
int64_t SummandBytes(const Collective& collective, int size, int me,
                     const NcclOptions& options);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_NCCL_NCCL_PLAN_H_
