// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tests/llama_training_testutil.h"

#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/index.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cross_entropy.h"

namespace crosshatch {

void LlamaTraining::Begin() {
  optimizer.emplace(model.Parameters(), nn::AdamWOptions{.lr = 0.1});
  state.emplace(nn::CombinedState::Parts{{"model", &parameters},
                                         {"optimizer", &*optimizer}});
}

absl::Status LlamaTraining::Step() {
  const std::vector<int32_t> ids = {0, 3, 10, 7, 7, 2, 9, 4};
  const std::vector<int32_t> targets = {3, 10, 7, 7, 2, 9, 4, 1};
  CH_RETURN_IF_ERROR(
      Backward(CrossEntropy(model.Forward(FromValues<int32_t>({2, 4}, ids)),
                            FromValues<int32_t>({2, 4}, targets))));
  CH_RETURN_IF_ERROR(optimizer->Step());
  optimizer->ZeroGrad();
  return absl::OkStatus();
}

absl::StatusOr<std::map<std::string, uint64_t>> HashesOf(
    const std::string& dir) {
  CH_ASSIGN_OR_RETURN(const checkpoint::CheckpointIndex index,
                      checkpoint::ReadIndex(dir));
  std::map<std::string, uint64_t> hashes;
  for (const checkpoint::IndexedTensor& tensor : index.tensors) {
    hashes[tensor.name] = tensor.hash.value_or(0);
  }
  return hashes;
}

}  // namespace crosshatch
