// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_HF_FIELDS_INL_H_
#define CROSSHATCH_CHECKPOINT_HF_FIELDS_INL_H_

/// \file
/// FieldReader: reads typed fields of a config.json.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace crosshatch::checkpoint {

/// The fields of one JSON object. Keeps the first error; later reads return
/// their fallbacks.
class FieldReader {
 public:
  FieldReader(const nlohmann::json& object, std::string path,
              std::string prefix)
      : object_(object), path_(std::move(path)), prefix_(std::move(prefix)) {}

  const absl::Status& status() const { return status_; }

  /// Reads a size of at least 1; required if `fallback` is negative.
  int64_t Size(const char* name, int64_t fallback = -1) {
    const nlohmann::json* value = Get(name, fallback < 0);
    if (value == nullptr) return fallback;
    if (!value->is_number_unsigned() || !IsInt64(*value)) {
      Refuse(name, *value, "a size is expected");
      return fallback;
    }
    // A 0 does not stand for a missing size.
    if (*value == 0) Refuse(name, *value, "it must be at least 1");
    return value->get<int64_t>();
  }

  /// Reads a token id, any integer: some files use -1 for none.
  std::optional<int64_t> Token(const char* name,
                               std::optional<int64_t> fallback) {
    read_.insert(name);
    const auto found = object_.find(name);
    if (found == object_.end()) return fallback;
    if (found->is_null()) return std::nullopt;
    if (!IsInt64(*found)) {
      Refuse(name, *found, "the id of a token is expected");
      return fallback;
    }
    return found->get<int64_t>();
  }

  /// Reads one token id or a list of them.
  std::vector<int64_t> Tokens(const char* name,
                              std::optional<int64_t> fallback) {
    read_.insert(name);
    const auto found = object_.find(name);
    std::vector<int64_t> tokens;
    if (found == object_.end() || !found->is_array()) {
      const std::optional<int64_t> token = Token(name, fallback);
      if (token.has_value()) tokens.push_back(*token);
      return tokens;
    }
    for (const nlohmann::json& token : *found) {
      if (!IsInt64(token)) {
        Refuse(name, *found, "ids of tokens are expected");
        break;
      }
      tokens.push_back(token.get<int64_t>());
    }
    return tokens;
  }

  /// Reads a count of 0 or more.
  int64_t Count(const char* name, int64_t fallback) {
    const nlohmann::json* value = Get(name, false);
    if (value == nullptr) return fallback;
    if (!value->is_number_unsigned() || !IsInt64(*value)) {
      Refuse(name, *value, "a number of 0 or more is expected");
      return fallback;
    }
    return value->get<int64_t>();
  }

  /// Reads a required list of numbers.
  std::vector<double> Numbers(const char* name) {
    std::vector<double> numbers;
    const nlohmann::json* value = Get(name, true);
    if (value == nullptr) return numbers;
    const auto is_number = [](const nlohmann::json& x) {
      return x.is_number();
    };
    if (!value->is_array() || !absl::c_all_of(*value, is_number)) {
      Refuse(name, *value, "a list of numbers is expected");
      return numbers;
    }
    for (const nlohmann::json& number : *value)
      numbers.push_back(number.get<double>());
    return numbers;
  }

  /// Returns whether the field exists, even if it is null.
  bool Has(const char* name) const { return object_.contains(name); }

  /// Calls `visit` for each field that no other call has read.
  template <typename Visit>
  void ForEachUnread(Visit visit) const {
    for (const auto& [name, value] : object_.items()) {
      if (!read_.contains(name)) visit(name, value);
    }
  }

  double Number(const char* name, double fallback) {
    const nlohmann::json* value = Get(name, false);
    if (value == nullptr) return fallback;
    if (!value->is_number()) {
      Refuse(name, *value, "a number is expected");
      return fallback;
    }
    return value->get<double>();
  }

  bool Bool(const char* name, bool fallback) {
    const nlohmann::json* value = Get(name, false);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) {
      Refuse(name, *value, "true or false is expected");
      return fallback;
    }
    return value->get<bool>();
  }

  /// Refuses any value other than `supported`; the field may be missing.
  void Expect(const char* name, const nlohmann::json& supported) {
    const nlohmann::json* value = Get(name, false);
    if (value != nullptr && *value != supported) {
      Refuse(name, *value,
             absl::StrCat("only ", Print(supported), " is supported"));
    }
  }

  /// Returns the value; null if the field is missing or null.
  const nlohmann::json* Get(const char* name, bool required) {
    read_.insert(name);
    const auto found = object_.find(name);
    if (found != object_.end() && !found->is_null()) return &*found;
    if (required && status_.ok()) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat(path_, ": ", prefix_, name, " is missing"));
    }
    return nullptr;
  }

  void Refuse(const char* name, const nlohmann::json& value,
              const std::string& why) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(absl::StrCat(
        path_, ": ", prefix_, name, " is ", Print(value), ", but ", why));
  }

 private:
  static bool IsInt64(const nlohmann::json& value) {
    return value.is_number_integer() &&
           (!value.is_number_unsigned() ||
            value.get<uint64_t>() <=
                uint64_t{std::numeric_limits<int64_t>::max()});
  }

  static std::string Print(const nlohmann::json& value) {
    constexpr size_t kLongest = 60;
    std::string text =
        value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    if (text.size() <= kLongest) return text;
    return absl::StrCat(text.substr(0, kLongest), "...");
  }

  const nlohmann::json& object_;
  const std::string path_;
  const std::string prefix_;
  absl::flat_hash_set<std::string> read_;
  absl::Status status_;
};

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_HF_FIELDS_INL_H_
