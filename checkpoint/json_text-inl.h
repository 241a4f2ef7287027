// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_JSON_TEXT_INL_H_
#define CROSSHATCH_CHECKPOINT_JSON_TEXT_INL_H_

/// \file
/// JSON as files from elsewhere bring it: config.json, the index of weights,
/// the header of a safetensors file.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace crosshatch::checkpoint {

/// How deep objects and lists may lie in one another. Files of models need 4;
/// what walks over a value calls itself once for each.
inline constexpr int kMostJsonDepth = 64;

/// Parses `text`, an object, into `json`. Refuses what nlohmann's parser would
/// let pass: an object that names a key twice, of which only the last value
/// would count.
/// \param what names the text in errors: "its header"
/// \error kInvalidArgument beginning with `what`
absl::Status ParseJsonObject(absl::string_view text, const std::string& what,
                             nlohmann::json& json);

/// A non-negative integer; nullopt for all else, and beyond 64 bits.
std::optional<int64_t> ParseJsonCount(const nlohmann::json& value);

/// Whether `text` can stand in JSON as it is: whether it is UTF-8.
bool IsJsonText(const std::string& text);
/// `text` as JSON has it, in quotes. \pre IsJsonText(text)
std::string QuoteJson(const std::string& text);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_JSON_TEXT_INL_H_
