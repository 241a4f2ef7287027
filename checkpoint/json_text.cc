// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "crosshatch/checkpoint/json_text-inl.h"
#include "nlohmann/json.hpp"

namespace crosshatch::checkpoint {
namespace {

using Json = nlohmann::json;

/// Whether brackets outside of strings are nested deeper than allowed. Needs no
/// memory, however deep they are.
bool IsTooDeep(absl::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMostJsonDepth) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

}  // namespace

absl::Status ParseJsonObject(absl::string_view text, const std::string& what,
                             Json& json) {
  if (IsTooDeep(text)) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, " is nested deeper than ", kMostJsonDepth, " levels"));
  }
  std::vector<std::set<std::string>> keys;
  std::string duplicate;
  const auto watch = [&](int, Json::parse_event_t event, Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
        keys.emplace_back();
        break;
      case Json::parse_event_t::object_end:
        keys.pop_back();
        break;
      case Json::parse_event_t::key:
        if (!keys.back().insert(parsed.get_ref<const std::string&>()).second) {
          duplicate = parsed.get_ref<const std::string&>();
        }
        break;
      default:
        break;
    }
    return true;
  };
  json = Json::parse(text.begin(), text.end(), watch,
                     /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    return absl::InvalidArgumentError(absl::StrCat(what, " is not JSON"));
  }
  if (!duplicate.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " names \"", duplicate, "\" twice"));
  }
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " is not a JSON object"));
  }
  return absl::OkStatus();
}

std::optional<int64_t> ParseJsonCount(const Json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto count = value.get<uint64_t>();
  if (count > uint64_t{std::numeric_limits<int64_t>::max()}) {
    return std::nullopt;
  }
  return static_cast<int64_t>(count);
}

bool IsJsonText(const std::string& text) {
  // What is not UTF-8 is left out of the dump.
  const std::string dumped =
      Json(text).dump(-1, ' ', false, Json::error_handler_t::ignore);
  return Json::parse(dumped).get_ref<const std::string&>() == text;
}

std::string QuoteJson(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace crosshatch::checkpoint
