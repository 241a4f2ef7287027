// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_NCCL_ARITHMETIC_H_
#define CROSSHATCH_EMULATION_NCCL_ARITHMETIC_H_

#include <cstddef>
#include <vector>

#include "crosshatch/emulation/nccl.h"

namespace crosshatch::emulation {

size_t NcclBytes(ncclDataType_t type);

/// Reduces elements [begin, begin + count) of `inputs`, one per rank, into
/// `out`. Each part begins with another rank, and each step is rounded to the
/// type.
void ReduceAsNccl(const std::vector<std::vector<std::byte>>& inputs,
                  size_t begin, size_t count, ncclDataType_t type,
                  ncclRedOp_t op, std::byte* out);

}  // namespace crosshatch::emulation

#endif  // CROSSHATCH_EMULATION_NCCL_ARITHMETIC_H_
