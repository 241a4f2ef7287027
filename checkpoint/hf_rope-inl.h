// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_HF_ROPE_INL_H_
#define CROSSHATCH_CHECKPOINT_HF_ROPE_INL_H_

/// \file
/// The rotary parameters of a config.json.

#include <string>

#include "absl/status/status.h"
#include "crosshatch/checkpoint/hf_fields-inl.h"
#include "crosshatch/nn/models/llama_config.h"
#include "nlohmann/json.hpp"

namespace crosshatch::checkpoint {

/// Reads the rotary base and its scaling out of rope_parameters (transformers
/// 5), or out of rope_theta and rope_scaling (before).
/// \param fields those of the config
/// \param config family and max_positions are read already
/// \error also for a config that holds both forms with different values
absl::Status ReadRope(const std::string& path, FieldReader& fields,
                      nn::LlamaConfig& config);

/// Returns the scaling as rope_scaling has it, or null if there is none. Every
/// version of transformers reads it, beside rope_theta.
nlohmann::json FormatScaling(const nn::LlamaConfig& config);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_HF_ROPE_INL_H_
