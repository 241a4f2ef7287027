// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_HF_CONFIG_H_
#define CROSSHATCH_CHECKPOINT_HF_CONFIG_H_

/// \file
/// Hugging Face's config.json of Llama and its kin, to and from LlamaConfig.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "crosshatch/nn/models/llama_config.h"
#include "crosshatch/tensor/dtype.h"

namespace crosshatch::checkpoint {

/// Reads `dir`/config.json of a model_type that LlamaFamily has. Both forms of
/// the rotary parameters are read: `rope_theta` with `rope_scaling`, and
/// `rope_parameters`. Where a field is missing, the default of transformers for
/// the family counts.
///
/// Refuses whatever the model here would compute differently: dropout, another
/// activation, attention that is not causal, partial rotation, windows in
/// blocks other than the last ones, both rotary forms with different values,
/// and a field that is not known and may change what the model computes.
/// Refuses what transformers refuses, heads that do not divide the width for
/// instance. \param ignored if not null, set to the other fields that are not
/// known; a
///     field that is known to change nothing is not among them
/// \error what the system said; kInvalidArgument naming the file and the field.
absl::StatusOr<nn::LlamaConfig> LoadConfig(
    const std::string& dir, std::vector<std::string>* ignored = nullptr);

/// Does what LoadConfig does on the text of a file, which errors call `path`.
absl::StatusOr<nn::LlamaConfig> ParseConfig(
    const std::string& text, const std::string& path,
    std::vector<std::string>* ignored = nullptr);

/// Returns the text of a config.json that LoadConfig and transformers read. It
/// states each option of `config`, and rotary positions by `rope_theta` and
/// `rope_scaling`, which every version of transformers reads.
/// \param dtype of the weights beside it
std::string FormatConfig(const nn::LlamaConfig& config, DType dtype = kFloat32);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_HF_CONFIG_H_
