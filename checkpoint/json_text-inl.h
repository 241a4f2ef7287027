// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_JSON_TEXT_INL_H_
#define CROSSHATCH_CHECKPOINT_JSON_TEXT_INL_H_

/// \file
/// Parses JSON of other programs: config.json, the index of weights, the header
/// of a safetensors file.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace crosshatch::checkpoint {

/// The maximal nesting depth of objects and lists. Files of models need 4. The
/// limit bounds the recursion of functions that visit values.
inline constexpr int kMaxJsonDepth = 64;

/// Parses `text`, an object, into `json`. Refuses an object with a repeated
/// key, of which nlohmann's parser would keep the last value only.
/// \param what names the text in errors, e.g. "its header".
/// \error kInvalidArgument beginning with `what`.
absl::Status ParseJsonObject(absl::string_view text, const std::string& what,
                             nlohmann::json& json);

/// Returns a non-negative integer of at most 63 bits; nullopt for other values.
std::optional<int64_t> ParseJsonCount(const nlohmann::json& value);

/// Returns whether `text` is UTF-8, as JSON requires.
bool IsJsonText(const std::string& text);
/// Returns `text` as a JSON string, in quotes.
/// \pre IsJsonText(text)
std::string QuoteJson(const std::string& text);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_JSON_TEXT_INL_H_
