// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_NCCL_NCCL_PLAN_H_
#define CROSSHATCH_COMM_NCCL_NCCL_PLAN_H_

/// \file
/// The choice of NCCL calls for a collective: pure functions of data that all
/// members know, so that all choose the same.

#include <cstddef>
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
  /// NCCL's own collectives, one for each NcclStrip, in one NCCL group. The
  /// rest is sent and received.
  kCollective,
};

/// Runs that NCCL's own collective moves: one of each list, of equal length and
/// consecutive in memory.
struct NcclStrip {
  int64_t elems = 0;  ///< Of each run.
  /// For each list, the index of its run.
  std::vector<int> runs;
};

/// The runs of lists that are equal on all members: received in an all-gather,
/// sent in a reduce-scatter.
struct NcclCuts {
  /// The lengths of each list's runs. Adjacent runs of a list are joined if
  /// `strips` then has the whole lists. Empty for other kinds.
  std::vector<std::vector<int64_t>> runs;
  std::vector<NcclStrip> strips;
  /// Identifies the runs and strips; 0 if there are too many runs.
  uint64_t hash = 0;
};

NcclCuts CutsOf(const Collective& collective);

/// \param cuts equal on all members
NcclWay ChooseNcclWay(const Collective& collective, const NcclCuts& cuts,
                      int size, const NcclOptions& options);

/// An all-gather or a reduce-scatter as NCCL's collectives and a rest.
struct NcclParts {
  struct Part {
    std::byte* all = nullptr;  ///< The runs of all members.
    SegmentList mine;          ///< This member's: sent or received.
    int64_t elems = 0;         ///< Of `mine`.
  };
  std::vector<Part> parts;
  /// Without the parts. Lists may be empty; without a rest, all are.
  Collective rest;
  bool has_rest = false;
  NcclCuts rest_cuts;
};
/// \param cuts of `collective`
NcclParts SplitOffStrips(const Collective& collective, const NcclCuts& cuts,
                         int me);

/// Returns the bytes of device memory for the others' summands on member `me`,
/// if a sum is made by sends and receives; otherwise 0. A dry run accounts for
/// them. Lists without addresses count as separate in memory.
int64_t SummandBytes(const Collective& collective, int size, int me,
                     const NcclOptions& options);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_NCCL_NCCL_PLAN_H_
