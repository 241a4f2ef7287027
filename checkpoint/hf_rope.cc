// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/hf_fields-inl.h"
#include "crosshatch/nn/layers/rope.h"

namespace crosshatch::checkpoint {
namespace {

using Json = nlohmann::json;
using RopeKind = nn::RopeScaling::Kind;

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

const RopeKindFields* FindRopeKind(const Json& type, nn::LlamaFamily family) {
  // Early Phi-3 files use these names for longrope.
  if (family == nn::LlamaFamily::kPhi3 && (type == "su" || type == "yarn")) {
    return &FieldsOf(RopeKind::kLongRope);
  }
  for (const RopeKindFields& kind : RopeKinds()) {
    if (type == kind.name) return &kind;
  }
  return nullptr;
}

double YarnSharpness(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double Sharpness(const nn::RopeScaling& rope, double factor) {
  if (factor <= 1) return 1;
  return std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(
                                              rope.original_positions)));
}

/// Returns the attention factor that follows from the other fields.
double DefaultAttentionFactor(const nn::RopeScaling& rope, double factor,
                              FieldReader& fields) {
  if (rope.kind == RopeKind::kYarn) {
    const double mscale = fields.Number("mscale", 0);
    const double all = fields.Number("mscale_all_dim", 0);
    return mscale != 0 && all != 0
               ? YarnSharpness(factor, mscale) / YarnSharpness(factor, all)
               : YarnSharpness(factor, 1);
  }
  return rope.kind == RopeKind::kLongRope ? Sharpness(rope, factor) : 1;
}

/// Returns longrope's attention_factor if a file states none.
double LongRopeSharpness(const nn::LlamaConfig& config) {
  const nn::RopeScaling& rope = config.rope_scaling;
  return Sharpness(rope, static_cast<double>(config.max_positions) /
                             static_cast<double>(rope.original_positions));
}

/// Reads the fields of one object of rotary parameters, whose kind is known.
/// \param outer the fields of the config. `config` must have its max_positions.
void ReadScaling(FieldReader& fields, FieldReader& outer,
                 const nn::LlamaConfig& config, nn::RopeScaling& rope) {
  const bool factor_follows =
      rope.kind == RopeKind::kYarn || rope.kind == RopeKind::kLongRope;
  // A field of the config takes precedence over one of the object (Phi-3).
  if (rope.kind == RopeKind::kDynamic) {
    rope.original_positions = config.max_positions;
  } else if (rope.kind != RopeKind::kLinear) {
    rope.original_positions = outer.Size(
        "original_max_position_embeddings",
        fields.Size("original_max_position_embeddings", config.max_positions));
  }
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

/// The values of one of the two forms.
struct Rotary {
  double theta = 0;
  nn::RopeScaling scaling;
  friend bool operator==(const Rotary&, const Rotary&) = default;
};

/// Reads the object `name` of the config.
/// \param theta the base if the object has none.
absl::StatusOr<Rotary> ReadForm(const char* name, const Json& rope,
                                const std::string& path, double theta,
                                const nn::LlamaConfig& config,
                                FieldReader& outer) {
  FieldReader fields(rope, path, absl::StrCat(name, "."));
  Rotary rotary = {.theta = fields.Number("rope_theta", theta)};
  if (outer.Has("rope_theta") && rotary.theta != theta) {
    fields.Refuse("rope_theta", rotary.theta,
                  absl::StrCat("the config's own rope_theta is ", theta,
                               "; remove the wrong one"));
  }
  fields.Expect("partial_rotary_factor", 1.0);
  const char* const type_name =
      rope.contains("rope_type") ? "rope_type" : "type";
  const Json* type = fields.Get(type_name, false);
  const RopeKindFields* kind = type == nullptr
                                   ? &FieldsOf(RopeKind::kNone)
                                   : FindRopeKind(*type, config.family);
  if (kind == nullptr) {
    fields.Refuse(type_name, *type,
                  "default, linear, dynamic, llama3, yarn and longrope are "
                  "supported");
    return fields.status();
  }
  for (const auto& [key, value] : rope.items()) {
    const bool is_known =
        key == "rope_theta" || key == "rope_type" || key == "type" ||
        key == "partial_rotary_factor" ||
        // transformers 5 also writes it for kinds that do not use it.
        key == "original_max_position_embeddings" ||
        absl::c_linear_search(kind->fields, key);
    if (!is_known) {
      fields.Refuse(key.c_str(), value,
                    absl::StrCat("rotary positions of type ", kind->name,
                                 " have no such field"));
    }
  }
  rotary.scaling.kind = kind->kind;
  if (kind->kind != RopeKind::kNone) {
    ReadScaling(fields, outer, config, rotary.scaling);
  }
  CH_RETURN_IF_ERROR(fields.status());
  return rotary;
}

}  // namespace

absl::Status ReadRope(const std::string& path, FieldReader& fields,
                      nn::LlamaConfig& config) {
  const double theta = fields.Number("rope_theta", 10000.0);
  fields.Expect("partial_rotary_factor", 1.0);
  std::optional<Rotary> found;
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    const Json* rope = fields.Get(name, false);
    if (rope == nullptr) continue;
    if (!rope->is_object()) {
      fields.Refuse(name, *rope, "an object is expected");
      break;
    }
    CH_ASSIGN_OR_RETURN(const Rotary rotary,
                        ReadForm(name, *rope, path, theta, config, fields));
    // Which of the two applies depends on the version of transformers.
    if (found.has_value() && *found != rotary) {
      fields.Refuse(name, *rope,
                    "rope_parameters holds other values; remove one of them");
    }
    found = rotary;
  }
  const Rotary rotary = found.value_or(Rotary{.theta = theta});
  config.rope_theta = rotary.theta;
  config.rope_scaling = rotary.scaling;
  return fields.status();
}

Json FormatScaling(const nn::LlamaConfig& config) {
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
  if (rope.kind == RopeKind::kNone) return nullptr;
  const bool is_phi3 = config.family == nn::LlamaFamily::kPhi3;
  Json json = {{is_phi3 ? "type" : "rope_type", kind.name}};
  for (const auto& [name, value] : values) {
    const bool follows =
        name == std::string("original_max_position_embeddings") ||
        (name == std::string("attention_factor") &&
         rope.attention_factor == LongRopeSharpness(config));
    if (is_phi3 && follows) continue;
    // longrope does not need `factor` in addition to its own factors.
    if (rope.kind == RopeKind::kLongRope && name == std::string("factor")) {
      continue;
    }
    if (absl::c_linear_search(kind.fields, std::string(name))) {
      json[name] = value;
    }
  }
  return json;
}

}  // namespace crosshatch::checkpoint
