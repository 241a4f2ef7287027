// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/hf_config.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/file_io.h"
#include "crosshatch/checkpoint/hf_fields-inl.h"
#include "crosshatch/checkpoint/json_text-inl.h"
#include "nlohmann/json.hpp"

namespace crosshatch::checkpoint {
namespace {

using Json = nlohmann::json;

/// The defaults of a family in transformers for missing fields.
struct FamilyDefaults {
  nn::LlamaFamily family;
  const char* architecture;
  int64_t kv_heads;  ///< 0: the number of heads.
  int64_t head_dim;  ///< 0: hidden_size / heads.
  double rms_norm_eps;
  int64_t max_positions;
  std::optional<int64_t> bos_token, eos_token, pad_token;
  int64_t sliding_window;
};

constexpr FamilyDefaults kFamilies[] = {
    {nn::LlamaFamily::kLlama,
     "LlamaForCausalLM",
     0,
     0,
     1e-6,
     2048,
     1,
     2,
     {},
     0},
    {nn::LlamaFamily::kMistral,
     "MistralForCausalLM",
     8,
     0,
     1e-6,
     131072,
     1,
     2,
     {},
     4096},
    {nn::LlamaFamily::kQwen2,
     "Qwen2ForCausalLM",
     32,
     0,
     1e-6,
     32768,
     {},
     {},
     {},
     4096},
    {nn::LlamaFamily::kQwen3,
     "Qwen3ForCausalLM",
     32,
     128,
     1e-6,
     32768,
     {},
     {},
     {},
     4096},
    {nn::LlamaFamily::kPhi3, "Phi3ForCausalLM", 0, 0, 1e-5, 4096, 1, 32000,
     32000, 0},
};

const FamilyDefaults& DefaultsOf(nn::LlamaFamily family) {
  return kFamilies[static_cast<size_t>(family)];
}

const FamilyDefaults* FindFamily(const Json& model_type) {
  for (const FamilyDefaults& family : kFamilies) {
    if (model_type == Name(family.family)) return &family;
  }
  return nullptr;
}

/// Returns "llama, mistral, ...".
std::string FamilyNames() {
  return absl::StrJoin(kFamilies, ", ",
                       [](std::string* out, const FamilyDefaults& family) {
                         absl::StrAppend(out, Name(family.family));
                       });
}

/// Reads the attention window, and the first block that has it, of a family
/// with windows.
void ReadWindow(FieldReader& fields, const FamilyDefaults& family,
                nn::LlamaConfig& config) {
  const bool is_qwen = family.family == nn::LlamaFamily::kQwen2 ||
                       family.family == nn::LlamaFamily::kQwen3;
  const Json* types = fields.Get("layer_types", false);
  int64_t first = 0;
  if (family.family != nn::LlamaFamily::kLlama) {
    // Null means no window, unlike a missing field.
    const int64_t window = fields.Has("sliding_window")
                               ? fields.Size("sliding_window", 0)
                               : family.sliding_window;
    const bool is_used = !is_qwen || fields.Bool("use_sliding_window", false);
    if (is_qwen) first = fields.Count("max_window_layers", 28);
    if (is_qwen && types != nullptr && types->is_array()) {
      first = absl::c_find_if_not(
                  *types, [](const Json& t) { return t == "full_attention"; }) -
              types->begin();
    }
    if (is_used && first < config.layers) {
      config.sliding_window = window;
      config.first_windowed_layer = window == 0 ? 0 : first;
    }
  }
  if (types == nullptr) return;
  bool fits =
      types->is_array() && static_cast<int64_t>(types->size()) == config.layers;
  for (int64_t i = 0; fits && i < config.layers; ++i) {
    fits = (*types)[static_cast<size_t>(i)] ==
           (config.WindowOf(i) == 0 ? "full_attention" : "sliding_attention");
  }
  if (fits) return;
  fields.Refuse(
      "layer_types", *types,
      is_qwen ? "full_attention for some blocks and then, with a "
                "window, sliding_attention for the rest is supported"
              : "all blocks of this family must be equal: sliding_attention "
                "with a sliding_window, else full_attention");
}

/// Fields that have no effect on the numbers of a training.
constexpr const char* kInert[] = {
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash",
    "_name_or_path", "architectures", "attn_implementation", "auto_map",
    "bad_words_ids", "begin_suppress_tokens", "chunk_size_feed_forward",
    "decoder_start_token_id", "diversity_penalty", "do_sample", "dtype",
    "early_stopping", "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty", "finetuning_task",
    "forced_bos_token_id", "forced_eos_token_id", "gradient_checkpointing",
    "id2label", "is_decoder", "keys_to_ignore_at_inference", "label2id",
    "length_penalty", "max_length", "min_length", "model_type",
    "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_labels",
    "num_return_sequences",
    // Phi-3's place for it. ReadRope reads it for the kinds that use it.
    "original_max_position_embeddings", "output_attentions",
    "output_hidden_states", "output_scores", "prefix", "pretraining_tp",
    "problem_type", "remove_invalid_values", "repetition_penalty",
    "return_dict", "return_dict_in_generate", "sep_token_id", "suppress_tokens",
    "task_specific_params", "temperature", "tokenizer_class", "top_k", "top_p",
    "torch_dtype", "torchscript", "transformers_version", "typical_p",
    "unk_token_id", "unsloth_fixed", "unsloth_version", "use_bfloat16",
    "use_cache"};

/// Parts of names of fields that affect what a model computes.
constexpr const char* kArithmetic[] = {
    "act",   "attention", "attn",   "bias",   "causal", "chunk",
    "drop",  "expert",    "factor", "head",   "hidden", "layer",
    "logit", "mask",      "moe",    "mult",   "norm",   "pos",
    "quant", "residual",  "rope",   "rotary", "scal",   "share",
    "soft",  "size",      "theta",  "tie",    "window"};

/// Refuses unread fields that may change what the model computes: objects,
/// lists and fields whose name has such a part.
/// \returns the names of the other unread fields, which are ignored.
std::vector<std::string> CheckUnread(FieldReader& fields) {
  std::vector<std::string> ignored;
  fields.ForEachUnread([&](const std::string& name, const Json& value) {
    const bool is_off = value.is_null() || value == false || value == "" ||
                        (value.is_structured() && value.empty());
    if (is_off || absl::c_linear_search(kInert, name)) return;
    const bool is_arithmetic = absl::c_any_of(
        kArithmetic,
        [&](const char* part) { return absl::StrContains(name, part); });
    if (is_arithmetic || value.is_structured()) {
      fields.Refuse(name.c_str(), value,
                    "this field is unknown for this family and may change what "
                    "the model computes; if it does not, remove it");
    }
    ignored.push_back(name);
  });
  return ignored;
}

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

}  // namespace

absl::StatusOr<nn::LlamaConfig> LoadConfig(const std::string& dir) {
  CH_ASSIGN_OR_RETURN(ConfigFile file, LoadConfigFile(dir));
  return std::move(file.config);
}

absl::StatusOr<nn::LlamaConfig> ParseConfig(const std::string& text,
                                            const std::string& path) {
  CH_ASSIGN_OR_RETURN(ConfigFile file, ParseConfigFile(text, path));
  return std::move(file.config);
}

absl::StatusOr<ConfigFile> LoadConfigFile(const std::string& dir) {
  const std::string path = absl::StrCat(dir, "/config.json");
  CH_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseConfigFile(text, path);
}

absl::StatusOr<ConfigFile> ParseConfigFile(const std::string& text,
                                           const std::string& path) {
  Json json;
  CH_RETURN_IF_ERROR(ParseJsonObject(text, path, json));
  FieldReader fields(json, path, "");
  fields.Expect("hidden_act", "silu");
  fields.Expect("is_causal", true);
  for (const char* name : {"attention_dropout", "resid_pdrop", "embd_pdrop"}) {
    fields.Expect(name, 0.0);
  }
  const Json* type = fields.Get("model_type", false);
  const FamilyDefaults* found =
      type == nullptr ? &kFamilies[0] : FindFamily(*type);
  if (found == nullptr) {
    fields.Refuse("model_type", *type,
                  absl::StrCat("the supported families are ", FamilyNames()));
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
  config.head_dim =
      fields.Has("head_dim") ? fields.Size("head_dim", 0) : family.head_dim;
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
  std::vector<std::string> ignored = CheckUnread(fields);
  CH_RETURN_IF_ERROR(fields.status());

  const absl::Status valid = config.Validate();
  if (!valid.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", std::string(valid.message())));
  }
  return ConfigFile{config.Resolved(), std::move(ignored)};
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
      {"rope_scaling", FormatScaling(config)},
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
          config.rope_scaling.kind == nn::RopeScaling::Kind::kLongRope
              ? config.rope_scaling.original_positions
              : config.max_positions;
      break;
  }
  return json.dump(2) + "\n";
}

}  // namespace crosshatch::checkpoint
