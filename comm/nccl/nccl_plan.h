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
  /// The lists are of one length, and lie behind one another as one run.
  bool is_consecutive = false;
  /// It stands for all of the plan; 0 where `runs` is empty.
  uint64_t hash = 0;
};

NcclCuts CutsOf(const Collective& collective);

/// Bytes of the device's memory that the summands of the others take on member
/// `me`, one behind the other, while a sum goes by sends and receives; 0 for
/// what takes another way. A dry run accounts for them; since it has no
/// addresses, lists that would lie behind one another count as apart.
int64_t SummandBytes(const Collective& collective, int size, int me,
                     const NcclOptions& options);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_NCCL_NCCL_PLAN_H_
