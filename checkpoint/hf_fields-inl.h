// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_HF_FIELDS_INL_H_
#define CROSSHATCH_CHECKPOINT_HF_FIELDS_INL_H_

/// \file
/// FieldReader: reads typed fields of a config.json; and its rotary parameters.

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
#include "crosshatch/nn/models/llama_config.h"
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
    const nlohmann::json* value =
        Typed(name, fallback < 0, IsCount, "a size is expected");
    if (value == nullptr) return fallback;
    // A 0 does not stand for a missing size.
    if (*value == 0) Refuse(name, *value, "it must be at least 1");
    return value->get<int64_t>();
  }

  /// Reads a token id, any integer: some files use -1 for none.
  std::optional<int64_t> Token(const char* name,
                               std::optional<int64_t> fallback) {
    if (Has(name) && object_[name].is_null()) fallback = std::nullopt;
    const nlohmann::json* value =
        Typed(name, false, IsInt64, "the id of a token is expected");
    return value == nullptr ? fallback : value->get<int64_t>();
  }

  /// Reads one token id or a list of them.
  std::vector<int64_t> Tokens(const char* name,
                              std::optional<int64_t> fallback) {
    if (!Has(name) || !object_[name].is_array()) {
      const std::optional<int64_t> token = Token(name, fallback);
      return token.has_value() ? std::vector{*token} : std::vector<int64_t>();
    }
    return List<int64_t>(name, IsInt64, "ids of tokens are expected");
  }

  /// Reads a count of 0 or more.
  int64_t Count(const char* name, int64_t fallback) {
    const nlohmann::json* value =
        Typed(name, false, IsCount, "a number of 0 or more is expected");
    return value == nullptr ? fallback : value->get<int64_t>();
  }

  /// Reads a required list of numbers.
  std::vector<double> Numbers(const char* name) {
    return List<double>(name, IsNumber, "a list of numbers is expected");
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
    const nlohmann::json* value =
        Typed(name, false, IsNumber, "a number is expected");
    return value == nullptr ? fallback : value->get<double>();
  }

  bool Bool(const char* name, bool fallback) {
    const nlohmann::json* value =
        Typed(name, false, IsBool, "true or false is expected");
    return value == nullptr ? fallback : value->get<bool>();
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
  using Test = bool (*)(const nlohmann::json&);

  static bool IsInt64(const nlohmann::json& value) {
    return value.is_number_integer() &&
           (!value.is_number_unsigned() ||
            value.get<uint64_t>() <=
                uint64_t{std::numeric_limits<int64_t>::max()});
  }
  static bool IsCount(const nlohmann::json& value) {
    return value.is_number_unsigned() && IsInt64(value);
  }
  static bool IsNumber(const nlohmann::json& value) {
    return value.is_number();
  }
  static bool IsBool(const nlohmann::json& value) { return value.is_boolean(); }

  /// Returns the value if it passes `test`. Otherwise null, and refuses it
  /// unless it is missing or null.
  const nlohmann::json* Typed(const char* name, bool required, Test test,
                              const char* expected) {
    const nlohmann::json* value = Get(name, required);
    if (value == nullptr || test(*value)) return value;
    Refuse(name, *value, expected);
    return nullptr;
  }

  /// Reads a required list whose elements pass `test`.
  template <typename T>
  std::vector<T> List(const char* name, Test test, const char* expected) {
    const nlohmann::json* value = Get(name, true);
    if (value == nullptr) return {};
    if (value->is_array() && absl::c_all_of(*value, test)) {
      return value->get<std::vector<T>>();
    }
    Refuse(name, *value, expected);
    return {};
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

#endif  // CROSSHATCH_CHECKPOINT_HF_FIELDS_INL_H_
