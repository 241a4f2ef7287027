// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_BATCH_SPLIT_H_
#define CROSSHATCH_FSDP_BATCH_SPLIT_H_

/// \file
/// How the batch of a forward is split over the data-parallel ranks.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/types/span.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/batch_rows.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::fsdp {

/// Of all Module::row_randomness in the trees of `modules`, one number; nullopt
/// where there is none, so that their forward asks for no rows.
std::optional<uint64_t> RowRandomness(absl::Span<nn::Module* const> modules);

/// The rows of the batch that `inputs` have. All ranks of `mesh` call it, and
/// tell each other over the side channel how many they have, in the order of
/// the mesh; where the input is distributed over the mesh, nothing is told.
/// Poisons the rank with an error of the side channel, or one that names two
/// ranks whose `randomness` differs. Checks that an input has rows.
/// \param module_name of whom the inputs are, for messages
nn::BatchRows ExchangeRows(const DeviceMesh& mesh,
                           const std::string& module_name, TensorSpan inputs,
                           uint64_t randomness);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_BATCH_SPLIT_H_
