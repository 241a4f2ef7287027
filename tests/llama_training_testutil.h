// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TESTS_LLAMA_TRAINING_TESTUTIL_H_
#define CROSSHATCH_TESTS_LLAMA_TRAINING_TESTUTIL_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/module_state.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/nn/state_dict.h"

namespace crosshatch {

/// One rank's part of a training that is kept in checkpoints: a model and its
/// optimizer.
struct LlamaTraining {
  /// \param config of 11 tokens at least.
  explicit LlamaTraining(const nn::LlamaConfig& config) : model(config) {}

  /// Makes the optimizer and the state; the model has been spread.
  void Begin();
  /// On one batch, the same on all ranks and at each step.
  absl::Status Step();

  nn::Llama model;
  nn::ModuleState parameters{model};
  std::optional<nn::AdamW> optimizer;
  std::optional<nn::CombinedState> state;
};

/// Hashes of the tensors of the checkpoint in `dir`, by name.
absl::StatusOr<std::map<std::string, uint64_t>> HashesOf(
    const std::string& dir);

}  // namespace crosshatch

#endif  // CROSSHATCH_TESTS_LLAMA_TRAINING_TESTUTIL_H_
