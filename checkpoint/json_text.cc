// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "crosshatch/checkpoint/json_text-inl.h"
#include "nlohmann/json.hpp"

namespace crosshatch::checkpoint {
namespace {

using Json = nlohmann::json;

/// Detects what nlohmann's parser accepts. A filter for that parser could too,
/// but visits all members of an object again for each of them.
class TextCheck final : public nlohmann::json_sax<Json> {
 public:
  bool is_too_deep() const { return is_too_deep_; }
  /// Returns a key that an object repeats; empty if none does.
  const std::string& duplicate() const { return duplicate_; }

  bool start_object(size_t) override { return Begin(); }
  bool start_array(size_t) override { return Begin(); }
  bool end_object() override { return End(); }
  bool end_array() override { return End(); }
  bool key(string_t& name) override {
    if (!keys_.back().insert(name).second) duplicate_ = name;
    return true;
  }
  bool parse_error(size_t, const std::string&,
                   const nlohmann::detail::exception&) override {
    return false;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }

 private:
  bool Begin() {
    keys_.emplace_back();
    is_too_deep_ = keys_.size() > kMaxJsonDepth;
    return !is_too_deep_;
  }
  bool End() {
    keys_.pop_back();
    return true;
  }

  /// Keys of the open objects and lists.
  std::vector<absl::flat_hash_set<std::string>> keys_;
  std::string duplicate_;
  bool is_too_deep_ = false;
};

}  // namespace

absl::Status ParseJsonObject(absl::string_view text, const std::string& what,
                             Json& json) {
  TextCheck check;
  const bool is_json = Json::sax_parse(text.begin(), text.end(), &check);
  if (check.is_too_deep()) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, " is nested deeper than ", kMaxJsonDepth, " levels"));
  }
  if (!is_json) {
    return absl::InvalidArgumentError(absl::StrCat(what, " is not JSON"));
  }
  if (!check.duplicate().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " names \"", check.duplicate(), "\" twice"));
  }
  json = Json::parse(text.begin(), text.end());
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
  // The dump omits bytes that are not UTF-8.
  const std::string dumped =
      Json(text).dump(-1, ' ', false, Json::error_handler_t::ignore);
  return Json::parse(dumped).get_ref<const std::string&>() == text;
}

std::string QuoteJson(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace crosshatch::checkpoint
