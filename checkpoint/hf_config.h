// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_HF_CONFIG_H_
#define CROSSHATCH_CHECKPOINT_HF_CONFIG_H_

/// \file
/// Hugging Face's config.json of Llama and its kin, to and from LlamaConfig.

#include <string>

#include "absl/status/statusor.h"
#include "crosshatch/nn/models/llama_config.h"
#include "crosshatch/tensor/dtype.h"

namespace crosshatch::checkpoint {

/// Reads `dir`/config.json of a model_type that LlamaFamily has. Both forms of
/// the rotary parameters are read: `rope_theta` with `rope_scaling`, and
/// `rope_parameters`. Whatever the model here would compute differently is
/// refused: dropout, another activation, partial rotation, windows in blocks
/// other than the last ones. So is what transformers refuses, heads that do not
/// divide the width for instance. Where a field is missing, the default of
/// transformers for the family counts.
/// \error what the system said; kInvalidArgument naming the file and the field.
absl::StatusOr<nn::LlamaConfig> LoadConfig(const std::string& dir);

/// Does what LoadConfig does on the text of a file, which errors call `path`.
absl::StatusOr<nn::LlamaConfig> ParseConfig(const std::string& text,
                                            const std::string& path);

/// The text of a config.json that LoadConfig and transformers read (its
/// versions before 5 by `rope_theta` and `rope_scaling`, later ones by
/// `rope_parameters`).
/// \param dtype of the weights beside it
std::string FormatConfig(const nn::LlamaConfig& config, DType dtype = kFloat32);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_HF_CONFIG_H_
