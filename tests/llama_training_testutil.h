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

/// One rank's state of a training run with checkpoints: a model and its
/// optimizer.
struct LlamaTraining {
  /// \param config needs at least 11 tokens
  explicit LlamaTraining(const nn::LlamaConfig& config) : model(config) {}

  /// Creates the optimizer and the state, after the model is distributed.
  void Begin();
  /// Trains on one batch, the same on all ranks and in each step.
  absl::Status Step();

  nn::Llama model;
  nn::ModuleState parameters{model};
  std::optional<nn::AdamW> optimizer;
  std::optional<nn::CombinedState> state;
};

/// Returns hashes of the tensors of the checkpoint in `dir`, by name.
absl::StatusOr<std::map<std::string, uint64_t>> HashesOf(
    const std::string& dir);

}  // namespace crosshatch

#endif  // CROSSHATCH_TESTS_LLAMA_TRAINING_TESTUTIL_H_
