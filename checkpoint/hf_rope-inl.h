// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_HF_ROPE_INL_H_
#define CROSSHATCH_CHECKPOINT_HF_ROPE_INL_H_

/// \file
/// Reads and writes the rotary parameters of a config.json.

#include <string>

#include "absl/status/status.h"
#include "crosshatch/checkpoint/hf_fields-inl.h"
#include "crosshatch/nn/models/llama_config.h"
#include "nlohmann/json.hpp"

namespace crosshatch::checkpoint {

/// Reads the rotary base and its scaling from rope_parameters (transformers 5)
/// or from rope_theta and rope_scaling (earlier versions).
/// \param fields the fields of the config.
/// \param config must have its family and max_positions.
/// \error also if the config has both forms with different values.
absl::Status ReadRope(const std::string& path, FieldReader& fields,
                      nn::LlamaConfig& config);

/// Returns the value of rope_scaling; null if there is no scaling. Every
/// version of transformers reads it, together with rope_theta.
nlohmann::json FormatScaling(const nn::LlamaConfig& config);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_HF_ROPE_INL_H_
