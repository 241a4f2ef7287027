// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_PARALLELIZE_LLAMA_H_
#define CROSSHATCH_EXAMPLES_PARALLELIZE_LLAMA_H_

/// \file
/// Distributes train_lm's Llama over the axes of --mesh.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/examples/train_options.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/models/llama.h"

namespace crosshatch::examples {

/// Returns the axes that split the batch, in the order that FullyShard expects:
/// the first of two replicates, the second shards. The user's order does not
/// matter.
std::vector<std::string> DataAxes(const TrainOptions& options);

/// Returns the number of tp ranks without a part of the attention. Heads are
/// not split: a key head stays with the query heads that use it or, if that
/// leaves ranks without heads, only query heads stay whole
/// (tp::ColwiseOptions::subunit).
int RanksWithoutHeads(const TrainOptions& options);

/// Distributes the model over the mesh: first by tp, then each block and the
/// rest by FSDP, with the recomputation, offload and dtype of the options.
/// \error for a plan of the user's, names the flag and the file.
absl::Status ParallelizeLlama(nn::Llama& model, const DeviceMesh& mesh,
                              const TrainOptions& options);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_PARALLELIZE_LLAMA_H_
