// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_REDUCE_H_
#define CROSSHATCH_COMM_REDUCE_H_

#include "crosshatch/tensor/kernels/kernel_table.h"

namespace crosshatch::internal {

/// Does what KernelTable::accumulate_ranks says.
void AccumulateRanks(const AccumulateRanksArgs& args);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_REDUCE_H_
