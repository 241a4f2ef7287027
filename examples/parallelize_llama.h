// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_PARALLELIZE_LLAMA_H_
#define CROSSHATCH_EXAMPLES_PARALLELIZE_LLAMA_H_

/// \file
/// How train_lm lays a Llama out over the axes that --mesh names.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/examples/train_options.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/models/llama.h"

namespace crosshatch::examples {

/// The axes that split the batch. FullyShard goes by their order: copies over
/// the first of two, shards over the second. The user's goes by their names.
std::vector<std::string> DataAxes(const TrainOptions& options);

/// How many ranks along tp have no part of the attention. Heads are split
/// whole, a key head with the query heads that use it, or, where that leaves
/// ranks without any, the query heads alone (LinearOptions::out_part).
int RanksWithoutHeads(const TrainOptions& options);

/// Splits the model over the mesh: by tp first, then each block and the rest by
/// FSDP, recomputed, offloaded and of the dtype that the options say.
/// \error what does not fit, of a plan of the user's with the flag and the file
absl::Status ParallelizeLlama(nn::Llama& model, const DeviceMesh& mesh,
                              const TrainOptions& options);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_PARALLELIZE_LLAMA_H_
