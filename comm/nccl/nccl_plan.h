// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_NCCL_NCCL_PLAN_H_
#define CROSSHATCH_COMM_NCCL_NCCL_PLAN_H_

/// \file
/// How a collective goes by NCCL: pure functions of what all members know, so
/// that all choose alike.

#include <cstdint>
#include <vector>

#include "crosshatch/comm/collective.h"
#include "crosshatch/comm/nccl/nccl_options.h"

namespace crosshatch::internal {

enum class NcclWay : uint8_t {
  /// Every member sends each other one its part, all in one group. Sums are
  /// taken by a kernel, in the order of ranks. One step, whatever the number of
  /// ranks: for what is small, uneven or to be added in order.
  kSendAndReceive,
  /// NCCL's own collective, of one run of memory.
  kCollective,
};

/// \param is_consecutive see NcclCuts; the same on all members.
NcclWay ChooseNcclWay(const Collective& collective, int size,
                      bool is_consecutive, const NcclOptions& options);

/// How the lists are cut that are the same on all members: what all receive in
/// an all-gather and what all send in a reduce-scatter.
struct NcclCuts {
  /// The runs of each list. Empty for other kinds, and for lists of more runs
  /// than are worth a message each.
  std::vector<std::vector<int64_t>> runs;
  /// The lists have one length, and are consecutive in memory.
  bool is_consecutive = false;
  /// It stands for all of the plan; 0 where `runs` is empty.
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
