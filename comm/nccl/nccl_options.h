// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_NCCL_NCCL_OPTIONS_H_
#define CROSSHATCH_COMM_NCCL_NCCL_OPTIONS_H_

#include <cstdint>

namespace crosshatch {

/// Must be equal on all ranks.
struct NcclOptions {
  /// Sums add ranks 0..n-1 in order, with the bits of `local`. Otherwise those
  /// of NCCL's own collectives have an order of NCCL's.
  bool deterministic = false;
  /// From this total of bytes sent or received by a rank on, NCCL's own
  /// collectives are used. Their rings and trees move less data in more steps.
  int64_t least_collective_bytes = int64_t{1} << 18;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_NCCL_NCCL_OPTIONS_H_
