// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/hf_config.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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
  std::vector<int64_t> Tokens(const char* name,
                              std::optional<int64_t> fallback) {
    const auto found = object_.find(name);
    std::vector<int64_t> tokens;
    if (found == object_.end() || !found->is_array()) {
      const std::optional<int64_t> token = Token(name, fallback);
      if (token.has_value()) tokens.push_back(*token);
      return tokens;
    }
    for (const Json& token : *found) {
      if (!IsInt64(token)) {
        Refuse(name, *found, "ids of tokens are expected");
        break;
      }
      tokens.push_back(token.get<int64_t>());
    }
    return tokens;
  }

  /// A number of things, 0 among them.
  int64_t Count(const char* name, int64_t fallback) {
    const Json* value = Get(name, false);
    if (value == nullptr) return fallback;
    if (!value->is_number_unsigned() || !IsInt64(*value)) {
      Refuse(name, *value, "a number of 0 or more is expected");
      return fallback;
    }
    return value->get<int64_t>();
  }

  /// Required: a list of numbers.
  std::vector<double> Numbers(const char* name) {
    std::vector<double> numbers;
    const Json* value = Get(name, true);
    if (value == nullptr) return numbers;
    const auto is_number = [](const Json& x) { return x.is_number(); };
    if (!value->is_array() || !absl::c_all_of(*value, is_number)) {
      Refuse(name, *value, "a list of numbers is expected");
      return numbers;
    }
    for (const Json& number : *value) numbers.push_back(number.get<double>());
    return numbers;
  }

  /// Also where it is null.
  bool Has(const char* name) const { return object_.contains(name); }

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

/// What transformers assumes of a family where a field is missing.
struct FamilyDefaults {
  nn::LlamaFamily family;
  const char* architecture;
  int64_t kv_heads;  ///< 0: as many as heads.
  int64_t head_dim;  ///< 0: hidden_size / heads.
  double rms_norm_eps;
  int64_t max_positions;
  std::optional<int64_t> bos_token, eos_token, pad_token;
  int64_t sliding_window;
};

constexpr FamilyDefaults kFamilies[] = {
    {nn::LlamaFamily::kLlama, "LlamaForCausalLM", 0, 0, 1e-6, 2048, 1, 2, {},
     0},
    {nn::LlamaFamily::kMistral, "MistralForCausalLM", 8, 0, 1e-6, 131072, 1, 2,
     {}, 4096},
    {nn::LlamaFamily::kQwen2, "Qwen2ForCausalLM", 32, 0, 1e-6, 32768, {}, {},
     {}, 4096},
    {nn::LlamaFamily::kQwen3, "Qwen3ForCausalLM", 32, 128, 1e-6, 32768, {}, {},
     {}, 4096},
    {nn::LlamaFamily::kPhi3, "Phi3ForCausalLM", 0, 0, 1e-5, 4096, 1, 32000,
     32000, 0},
};

const FamilyDefaults& DefaultsOf(nn::LlamaFamily family) {
  return kFamilies[static_cast<size_t>(family)];
}

/// Null for a model_type that is of no family.
const FamilyDefaults* FindFamily(const Json& model_type) {
  for (const FamilyDefaults& family : kFamilies) {
    if (model_type == Name(family.family)) return &family;
  }
  return nullptr;
}

/// "llama, mistral, ...".
std::string FamilyNames() {
  return absl::StrJoin(kFamilies, ", ",
                       [](std::string* out, const FamilyDefaults& family) {
                         absl::StrAppend(out, Name(family.family));
                       });
}

using RopeKind = nn::RopeScaling::Kind;

/// The names of the kinds, and the fields that each reads.
struct RopeKindFields {
  RopeKind kind;
  const char* name;
  std::vector<const char*> fields;
};

const std::vector<RopeKindFields>& RopeKinds() {
  static const auto* const kKinds = new std::vector<RopeKindFields>{
      {RopeKind::kNone, "default", {}},
      {RopeKind::kLinear, "linear", {"factor"}},
      {RopeKind::kDynamic, "dynamic", {"factor"}},
      {RopeKind::kLlama3,
       "llama3",
       {"factor", "low_freq_factor", "high_freq_factor",
        "original_max_position_embeddings"}},
      {RopeKind::kYarn,
       "yarn",
       {"factor", "attention_factor", "beta_fast", "beta_slow", "mscale",
        "mscale_all_dim", "truncate", "original_max_position_embeddings"}},
      {RopeKind::kLongRope,
       "longrope",
       {"factor", "attention_factor", "short_factor", "long_factor",
        "original_max_position_embeddings"}},
  };
  return *kKinds;
}

const RopeKindFields& FieldsOf(RopeKind kind) {
  return RopeKinds()[static_cast<size_t>(kind)];
}

/// Null for a type of rope that is not supported.
const RopeKindFields* FindRopeKind(const Json& type, nn::LlamaFamily family) {
  // What early files of Phi-3 call longrope.
  if (family == nn::LlamaFamily::kPhi3 && (type == "su" || type == "yarn")) {
    return &FieldsOf(RopeKind::kLongRope);
  }
  for (const RopeKindFields& kind : RopeKinds()) {
    if (type == kind.name) return &kind;
  }
  return nullptr;
}

/// By how much yarn sharpens attention at `factor`.
double YarnSharpness(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

/// What follows from the other fields where a file does not say it.
double DefaultAttentionFactor(const nn::RopeScaling& rope, double factor,
                              FieldReader& fields) {
  if (rope.kind == RopeKind::kYarn) {
    const double mscale = fields.Number("mscale", 0);
    const double all = fields.Number("mscale_all_dim", 0);
    return mscale != 0 && all != 0
               ? YarnSharpness(factor, mscale) / YarnSharpness(factor, all)
               : YarnSharpness(factor, 1);
  }
  if (rope.kind != RopeKind::kLongRope || factor <= 1) return 1;
  return std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(
                                              rope.original_positions)));
}

/// The fields of one object of rotary parameters, whose kind is known.
/// \param outer the fields of the config, whose max_positions is read already
void ReadScaling(FieldReader& fields, FieldReader& outer,
                 const nn::LlamaConfig& config, nn::RopeScaling& rope) {
  const bool factor_follows =
      rope.kind == RopeKind::kYarn || rope.kind == RopeKind::kLongRope;
  // Beside the object it counts more than within (Phi-3 has it there).
  rope.original_positions =
      rope.kind == RopeKind::kDynamic
          ? config.max_positions
          : outer.Size("original_max_position_embeddings",
                       fields.Size("original_max_position_embeddings",
                                   config.max_positions));
  double factor = 1;
  if (factor_follows && fields.Get("factor", false) == nullptr) {
    factor = static_cast<double>(config.max_positions) /
             static_cast<double>(rope.original_positions);
  } else if (fields.Get("factor", true) != nullptr) {
    factor = fields.Number("factor", 1);
  }
  if (rope.kind != RopeKind::kLongRope) rope.factor = factor;
  if (rope.kind == RopeKind::kLlama3) {
    fields.Get("low_freq_factor", true);
    fields.Get("high_freq_factor", true);
  }
  rope.low_freq_factor = fields.Number("low_freq_factor", 1);
  rope.high_freq_factor = fields.Number("high_freq_factor", 4);
  rope.beta_fast = fields.Number("beta_fast", 32);
  rope.beta_slow = fields.Number("beta_slow", 1);
  rope.truncate = fields.Bool("truncate", true);
  if (rope.kind == RopeKind::kLongRope) {
    rope.short_factor = fields.Numbers("short_factor");
    rope.long_factor = fields.Numbers("long_factor");
  }
  if (factor_follows) {
    rope.attention_factor = fields.Number(
        "attention_factor", DefaultAttentionFactor(rope, factor, fields));
  }
}

/// The rotary base and its scaling out of rope_parameters (transformers 5), or
/// out of rope_theta and rope_scaling (before).
absl::Status ReadRope(const std::string& path, FieldReader& fields,
                      nn::LlamaConfig& config) {
  config.rope_theta = fields.Number("rope_theta", 10000.0);
  fields.Expect("partial_rotary_factor", 1.0);
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    const Json* rope = fields.Get(name, false);
    if (rope == nullptr) continue;
    if (!rope->is_object()) {
      fields.Refuse(name, *rope, "an object is expected");
      break;
    }
    FieldReader rope_fields(*rope, path, absl::StrCat(name, "."));
    config.rope_theta = rope_fields.Number("rope_theta", config.rope_theta);
    rope_fields.Expect("partial_rotary_factor", 1.0);
    const char* const type_name =
        rope->contains("rope_type") ? "rope_type" : "type";
    const Json* type = rope_fields.Get(type_name, false);
    const RopeKindFields* kind =
        type == nullptr ? &FieldsOf(RopeKind::kNone)
                        : FindRopeKind(*type, config.family);
    if (kind == nullptr) {
      rope_fields.Refuse(type_name, *type,
                         "default, linear, dynamic, llama3, yarn and longrope "
                         "are supported");
      return rope_fields.status();
    }
    for (const auto& [key, value] : rope->items()) {
      const bool is_known =
          key == "rope_theta" || key == "rope_type" || key == "type" ||
          key == "partial_rotary_factor" ||
          // transformers 5 writes it beside whatever it does not scale too.
          key == "original_max_position_embeddings" ||
          absl::c_linear_search(kind->fields, key);
      if (!is_known) {
        rope_fields.Refuse(
            key.c_str(), value,
            absl::StrCat("rotary positions of type ", kind->name,
                         " have no such field"));
      }
    }
    config.rope_scaling = {.kind = kind->kind};
    if (kind->kind != RopeKind::kNone) {
      ReadScaling(rope_fields, fields, config, config.rope_scaling);
    }
    CH_RETURN_IF_ERROR(rope_fields.status());
    if (kind->kind != RopeKind::kNone) break;
  }
  return fields.status();
}

/// The window of a family that has one, and the blocks that it begins at.
void ReadWindow(FieldReader& fields, const FamilyDefaults& family,
                nn::LlamaConfig& config) {
  const bool is_qwen = family.family == nn::LlamaFamily::kQwen2 ||
                       family.family == nn::LlamaFamily::kQwen3;
  if (family.family == nn::LlamaFamily::kLlama) return;
  if (is_qwen && !fields.Bool("use_sliding_window", false)) return;
  // Null is no window, which is not what a missing field is.
  config.sliding_window = fields.Has("sliding_window")
                              ? fields.Size("sliding_window", 0)
                              : family.sliding_window;
  if (!is_qwen || config.sliding_window == 0) return;
  int64_t first = fields.Count("max_window_layers", 28);
  if (const Json* types = fields.Get("layer_types", false)) {
    const auto is = [&](int64_t layer, const char* type) {
      return (*types)[static_cast<size_t>(layer)] == type;
    };
    bool fits = types->is_array() &&
                static_cast<int64_t>(types->size()) == config.layers;
    for (first = 0; fits && first < config.layers; ++first) {
      if (!is(first, "full_attention")) break;
    }
    for (int64_t i = first; fits && i < config.layers; ++i) {
      fits = is(i, "sliding_attention");
    }
    if (!fits) {
      fields.Refuse("layer_types", *types,
                    "full_attention for some blocks and then "
                    "sliding_attention for the rest is supported");
    }
  }
  // No block has a window then.
  if (first >= config.layers) {
    config.sliding_window = 0;
    first = 0;
  }
  config.first_windowed_layer = first;
}

/// PyTorch's name of a floating-point type.
const char* TorchName(DType dtype) {
  switch (dtype) {
    case kFloat64:
      return "float64";
    case kBFloat16:
      return "bfloat16";
    case kFloat16:
      return "float16";
    default:
      return "float32";
  }
}

/// The rotary parameters in transformers' form.
Json FormatRope(const nn::LlamaConfig& config) {
  const nn::RopeScaling& rope = config.rope_scaling;
  const RopeKindFields& kind = FieldsOf(rope.kind);
  const std::pair<const char*, Json> values[] = {
      {"factor", rope.factor},
      {"attention_factor", rope.attention_factor},
      {"low_freq_factor", rope.low_freq_factor},
      {"high_freq_factor", rope.high_freq_factor},
      {"beta_fast", rope.beta_fast},
      {"beta_slow", rope.beta_slow},
      {"truncate", rope.truncate},
      {"short_factor", rope.short_factor},
      {"long_factor", rope.long_factor},
      {"original_max_position_embeddings", rope.original_positions},
  };
  Json json = {{"rope_theta", config.rope_theta}, {"rope_type", kind.name}};
  for (const auto& [name, value] : values) {
    // longrope's own factors say all that `factor` would.
    if (rope.kind == RopeKind::kLongRope && name == std::string("factor")) {
      continue;
    }
    if (absl::c_linear_search(kind.fields, std::string(name))) {
      json[name] = value;
    }
  }
  return json;
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
  fields.Expect("hidden_act", "silu");
  for (const char* name : {"attention_dropout", "resid_pdrop", "embd_pdrop"}) {
    fields.Expect(name, 0.0);
  }
  const Json* type = fields.Get("model_type", false);
  const FamilyDefaults* found =
      type == nullptr ? &kFamilies[0] : FindFamily(*type);
  if (found == nullptr) {
    fields.Refuse("model_type", *type,
                  absl::StrCat("the families that share Llama's shape are ",
                               FamilyNames()));
    return fields.status();
  }
  const FamilyDefaults& family = *found;

  nn::LlamaConfig config;
  config.family = family.family;
  config.dim = fields.Size("hidden_size");
  config.layers = fields.Size("num_hidden_layers");
  config.heads = fields.Size("num_attention_heads");
  config.kv_heads = fields.Has("num_key_value_heads")
                        ? fields.Size("num_key_value_heads", 0)
                        : family.kv_heads;
  config.head_dim = fields.Has("head_dim") ? fields.Size("head_dim", 0)
                                           : family.head_dim;
  config.ffn = fields.Size("intermediate_size");
  config.vocab = fields.Size("vocab_size");
  config.rms_norm_eps = fields.Number("rms_norm_eps", family.rms_norm_eps);
  config.tied_embeddings = fields.Bool("tie_word_embeddings", false);
  config.max_positions =
      fields.Size("max_position_embeddings", family.max_positions);
  config.initializer_stddev = fields.Number("initializer_range", 0.02);
  config.bos_token = fields.Token("bos_token_id", family.bos_token);
  config.eos_tokens = fields.Tokens("eos_token_id", family.eos_token);
  config.pad_token = fields.Token("pad_token_id", family.pad_token);
  switch (family.family) {
    case nn::LlamaFamily::kLlama:
      config.mlp_bias = fields.Bool("mlp_bias", false);
      [[fallthrough]];
    case nn::LlamaFamily::kQwen3:
      config.qkv_bias = config.o_bias = fields.Bool("attention_bias", false);
      break;
    case nn::LlamaFamily::kQwen2:
      config.qkv_bias = true;
      break;
    case nn::LlamaFamily::kMistral:
    case nn::LlamaFamily::kPhi3:
      break;
  }
  config.qk_norm = family.family == nn::LlamaFamily::kQwen3;
  CH_RETURN_IF_ERROR(fields.status());
  ReadWindow(fields, family, config);
  CH_RETURN_IF_ERROR(ReadRope(path, fields, config));

  const absl::Status valid = config.Validate();
  if (!valid.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", std::string(valid.message())));
  }
  return config.Resolved();
}

std::string FormatConfig(const nn::LlamaConfig& given, DType dtype) {
  const nn::LlamaConfig config = given.Resolved();
  const auto token = [](const std::optional<int64_t>& id) {
    return id.has_value() ? Json(*id) : Json(nullptr);
  };
  Json eos = nullptr;
  if (config.eos_tokens.size() == 1) eos = config.eos_tokens[0];
  if (config.eos_tokens.size() > 1) eos = config.eos_tokens;
  const FamilyDefaults& family = DefaultsOf(config.family);
  Json json = {
      {"architectures", Json::array({family.architecture})},
      {"model_type", Name(config.family)},
      {"hidden_act", "silu"},
      {"attention_dropout", 0.0},
      {"dtype", TorchName(dtype)},
      {"torch_dtype", TorchName(dtype)},
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
      {"rope_parameters", FormatRope(config)},
  };
  const bool has_window = config.sliding_window != 0;
  const Json window = has_window ? Json(config.sliding_window) : Json(nullptr);
  switch (config.family) {
    case nn::LlamaFamily::kLlama:
      json["mlp_bias"] = config.mlp_bias;
      json["attention_bias"] = config.o_bias;
      break;
    case nn::LlamaFamily::kQwen3:
      json["attention_bias"] = config.o_bias;
      [[fallthrough]];
    case nn::LlamaFamily::kQwen2: {
      json["use_sliding_window"] = has_window;
      json["sliding_window"] = window;
      json["max_window_layers"] =
          has_window ? config.first_windowed_layer : config.layers;
      for (int64_t i = 0; i < config.layers; ++i) {
        json["layer_types"].push_back(
            config.WindowOf(i) != 0 ? "sliding_attention" : "full_attention");
      }
      break;
    }
    case nn::LlamaFamily::kMistral:
      json["sliding_window"] = window;
      break;
    case nn::LlamaFamily::kPhi3:
      json["sliding_window"] = window;
      json["original_max_position_embeddings"] =
          config.rope_scaling.kind == RopeKind::kLongRope
              ? config.rope_scaling.original_positions
              : config.max_positions;
      break;
  }
  // What versions before 5 read.
  if (config.rope_scaling.kind != RopeKind::kNone) {
    Json scaling = json["rope_parameters"];
    scaling.erase("rope_theta");
    json["rope_scaling"] = std::move(scaling);
  }
  return json.dump(2) + "\n";
}

}  // namespace crosshatch::checkpoint
