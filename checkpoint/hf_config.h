// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_HF_CONFIG_H_
#define CROSSHATCH_CHECKPOINT_HF_CONFIG_H_

/// \file
/// Converts Hugging Face's config.json of Llama-like models to and from
/// LlamaConfig.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "crosshatch/nn/models/llama_config.h"
#include "crosshatch/tensor/dtype.h"

namespace crosshatch::checkpoint {

/// Reads `dir`/config.json, whose model_type must be one of LlamaFamily. Reads
/// both forms of rotary parameters: `rope_theta` with `rope_scaling`, and
/// `rope_parameters`. A missing field has the family's default in transformers.
///
/// Refuses everything that this library would compute differently: dropout,
/// another activation, non-causal attention, partial rotation, windows in
/// blocks other than the last ones, both rotary forms with different values,
/// and unknown fields that may change the result. Also refuses what
/// transformers refuses, e.g. heads that do not divide the width.
/// \error kInvalidArgument naming the file and the field; errors of the system.
absl::StatusOr<nn::LlamaConfig> LoadConfig(const std::string& dir);

/// Parses the text of a config.json.
/// \param path names the text in errors.
absl::StatusOr<nn::LlamaConfig> ParseConfig(const std::string& text,
                                            const std::string& path);

/// A config.json, with the names of its other unknown fields. Fields that are
/// known to have no effect are not among them.
struct ConfigFile {
  nn::LlamaConfig config;
  std::vector<std::string> ignored;
};
/// As LoadConfig and ParseConfig.
absl::StatusOr<ConfigFile> LoadConfigFile(const std::string& dir);
absl::StatusOr<ConfigFile> ParseConfigFile(const std::string& text,
                                           const std::string& path);

/// Returns the text of a config.json that LoadConfig and transformers read. It
/// states every option of `config`, and rotary positions as `rope_theta` and
/// `rope_scaling`, which every version of transformers reads.
/// \param dtype the dtype of the weights.
std::string FormatConfig(const nn::LlamaConfig& config, DType dtype = kFloat32);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_HF_CONFIG_H_
