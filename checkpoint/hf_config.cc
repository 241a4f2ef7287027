// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/hf_config.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/file_io.h"
#include "crosshatch/checkpoint/json_text-inl.h"
#include "nlohmann/json.hpp"

namespace crosshatch::checkpoint {
namespace {

using Json = nlohmann::json;

/// The fields of one JSON object. Keeps the first error; later reads then give
/// their defaults.
class FieldReader {
 public:
  FieldReader(const Json& object, std::string path, std::string prefix)
      : object_(object), path_(std::move(path)), prefix_(std::move(prefix)) {}

  const absl::Status& status() const { return status_; }

  /// A size of 1 or more; required where there is no `fallback`.
  int64_t Size(const char* name, int64_t fallback = -1) {
    const Json* value = Get(name, fallback < 0);
    if (value == nullptr) return fallback;
    if (!value->is_number_unsigned() || !IsInt64(*value)) {
      Refuse(name, *value, "a size is expected");
      return fallback;
    }
    // A 0 in a file is no way to leave a size open.
    if (*value == 0) Refuse(name, *value, "it must be at least 1");
    return value->get<int64_t>();
  }

  /// The id of a token, as any integer: -1 is in use for none.
  std::optional<int64_t> Token(const char* name,
                               std::optional<int64_t> fallback) {
    const auto found = object_.find(name);
    if (found == object_.end()) return fallback;
    if (found->is_null()) return std::nullopt;
    if (!IsInt64(*found)) {
      Refuse(name, *found, "the id of a token is expected");
      return fallback;
    }
    return found->get<int64_t>();
  }

  /// One id of a token, or a list of them.
  std::vector<int64_t> Tokens(const char* name, int64_t fallback) {
    const auto found = object_.find(name);
    if (found == object_.end()) return {fallback};
    if (found->is_null()) return {};
    if (!found->is_array()) return {Token(name, fallback).value_or(fallback)};
    std::vector<int64_t> tokens;
    for (const Json& token : *found) {
      if (!IsInt64(token)) {
        Refuse(name, *found, "ids of tokens are expected");
        break;
      }
      tokens.push_back(token.get<int64_t>());
    }
    return tokens;
  }

  double Number(const char* name, double fallback) {
    const Json* value = Get(name, false);
    if (value == nullptr) return fallback;
    if (!value->is_number()) {
      Refuse(name, *value, "a number is expected");
      return fallback;
    }
    return value->get<double>();
  }

  bool Bool(const char* name, bool fallback) {
    const Json* value = Get(name, false);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) {
      Refuse(name, *value, "true or false is expected");
      return fallback;
    }
    return value->get<bool>();
  }

  /// Refuses any value but `supported` (and a missing field).
  void Expect(const char* name, const Json& supported) {
    const Json* value = Get(name, false);
    if (value != nullptr && *value != supported) {
      Refuse(name, *value,
             absl::StrCat("only ", Print(supported), " is supported"));
    }
  }

  /// Null where it is missing or null.
  const Json* Get(const char* name, bool required) {
    const auto found = object_.find(name);
    if (found != object_.end() && !found->is_null()) return &*found;
    if (required && status_.ok()) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat(path_, ": ", prefix_, name, " is missing"));
    }
    return nullptr;
  }

  void Refuse(const char* name, const Json& value, const std::string& why) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(absl::StrCat(
        path_, ": ", prefix_, name, " is ", Print(value), ", but ", why));
  }

 private:
  static bool IsInt64(const Json& value) {
    return value.is_number_integer() &&
           (!value.is_number_unsigned() ||
            value.get<uint64_t>() <=
                uint64_t{std::numeric_limits<int64_t>::max()});
  }

  static std::string Print(const Json& value) {
    constexpr size_t kLongest = 60;
    std::string text =
        value.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text.size() <= kLongest) return text;
    return absl::StrCat(text.substr(0, kLongest), "...");
  }

  const Json& object_;
  const std::string path_;
  const std::string prefix_;
  absl::Status status_;
};

/// The rotary base out of rope_parameters (transformers 5), or out of
/// rope_theta and a rope_scaling that scales nothing (before).
absl::Status ReadRope(const std::string& path, FieldReader& fields,
                      nn::LlamaConfig& config) {
  config.rope_theta = fields.Number("rope_theta", 10000.0);
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    const Json* rope = fields.Get(name, false);
    if (rope == nullptr) continue;
    if (!rope->is_object()) {
      fields.Refuse(name, *rope, "an object is expected");
      break;
    }
    FieldReader rope_fields(*rope, path, absl::StrCat(name, "."));
    config.rope_theta = rope_fields.Number("rope_theta", config.rope_theta);
    rope_fields.Expect("rope_type", "default");
    rope_fields.Expect("type", "default");
    rope_fields.Expect("partial_rotary_factor", 1.0);
    for (const auto& [key, value] : rope->items()) {
      if (key != "rope_theta" && key != "rope_type" && key != "type" &&
          key != "partial_rotary_factor") {
        rope_fields.Refuse(key.c_str(), value,
                           "scaled rotary embeddings are not supported");
      }
    }
    CH_RETURN_IF_ERROR(rope_fields.status());
  }
  return fields.status();
}

}  // namespace

absl::StatusOr<nn::LlamaConfig> LoadConfig(const std::string& dir) {
  const std::string path = absl::StrCat(dir, "/config.json");
  CH_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseConfig(text, path);
}

absl::StatusOr<nn::LlamaConfig> ParseConfig(const std::string& text,
                                            const std::string& path) {
  Json json;
  CH_RETURN_IF_ERROR(ParseJsonObject(text, path, json));
  FieldReader fields(json, path, "");
  fields.Expect("model_type", "llama");
  fields.Expect("hidden_act", "silu");
  fields.Expect("attention_bias", false);
  fields.Expect("mlp_bias", false);
  fields.Expect("attention_dropout", 0.0);

  nn::LlamaConfig config;
  config.dim = fields.Size("hidden_size");
  config.layers = fields.Size("num_hidden_layers");
  config.heads = fields.Size("num_attention_heads");
  config.kv_heads = fields.Size("num_key_value_heads", 0);
  config.head_dim = fields.Size("head_dim", 0);
  config.ffn = fields.Size("intermediate_size");
  config.vocab = fields.Size("vocab_size");
  // Where a field is missing, transformers' own default counts.
  config.rms_norm_eps = fields.Number("rms_norm_eps", 1e-6);
  config.tied_embeddings = fields.Bool("tie_word_embeddings", false);
  config.max_positions = fields.Size("max_position_embeddings", 2048);
  config.initializer_stddev = fields.Number("initializer_range", 0.02);
  config.bos_token = fields.Token("bos_token_id", 1);
  config.eos_tokens = fields.Tokens("eos_token_id", 2);
  config.pad_token = fields.Token("pad_token_id", std::nullopt);
  CH_RETURN_IF_ERROR(ReadRope(path, fields, config));

  const absl::Status valid = config.Validate();
  if (!valid.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", std::string(valid.message())));
  }
  return config.Resolved();
}

std::string FormatConfig(const nn::LlamaConfig& given) {
  const nn::LlamaConfig config = given.Resolved();
  const auto token = [](const std::optional<int64_t>& id) {
    return id.has_value() ? Json(*id) : Json(nullptr);
  };
  Json eos = nullptr;
  if (config.eos_tokens.size() == 1) eos = config.eos_tokens[0];
  if (config.eos_tokens.size() > 1) eos = config.eos_tokens;
  const Json json = {
      {"architectures", Json::array({"LlamaForCausalLM"})},
      {"model_type", "llama"},
      {"hidden_act", "silu"},
      {"attention_bias", false},
      {"attention_dropout", 0.0},
      {"mlp_bias", false},
      {"dtype", "float32"},
      {"torch_dtype", "float32"},
      {"hidden_size", config.dim},
      {"num_hidden_layers", config.layers},
      {"num_attention_heads", config.heads},
      {"num_key_value_heads", config.kv_heads},
      {"head_dim", config.head_dim},
      {"intermediate_size", config.ffn},
      {"vocab_size", config.vocab},
      {"rms_norm_eps", config.rms_norm_eps},
      {"tie_word_embeddings", config.tied_embeddings},
      {"max_position_embeddings", config.max_positions},
      {"initializer_range", config.initializer_stddev},
      {"bos_token_id", token(config.bos_token)},
      {"eos_token_id", std::move(eos)},
      {"pad_token_id", token(config.pad_token)},
      {"rope_theta", config.rope_theta},
      {"rope_parameters",
       {{"rope_theta", config.rope_theta}, {"rope_type", "default"}}},
  };
  return json.dump(2) + "\n";
}

}  // namespace crosshatch::checkpoint
