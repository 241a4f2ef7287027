// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_HF_CONFIG_H_
#define CROSSHATCH_CHECKPOINT_HF_CONFIG_H_

/// \file
/// Hugging Face's config.json of a Llama model, to and from LlamaConfig.

#include <string>

#include "absl/status/statusor.h"
#include "crosshatch/nn/models/llama_config.h"

namespace crosshatch::checkpoint {

/// Reads `dir`/config.json. Both forms of the rotary base are read: the field
/// `rope_theta`, and `rope_parameters` with `rope_type` "default". Whatever the
/// model here would compute differently is refused: scaled rotary embeddings,
/// biases, dropout, another activation. So is what transformers refuses, heads
/// that do not divide the width for instance. Where a field is missing, the
/// default of transformers counts.
/// \error what the system said; kInvalidArgument naming the file and the field.
absl::StatusOr<nn::LlamaConfig> LoadConfig(const std::string& dir);

/// As LoadConfig on the text of a file; `path` names it in errors.
absl::StatusOr<nn::LlamaConfig> ParseConfig(const std::string& text,
                                            const std::string& path);

/// The text of a config.json that LoadConfig and transformers read (its
/// versions before 5 by `rope_theta`, later ones by `rope_parameters`).
std::string FormatConfig(const nn::LlamaConfig& config);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_HF_CONFIG_H_
