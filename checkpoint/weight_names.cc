// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/weight_names.h"

#include <algorithm>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "crosshatch/base/status_macros.h"

namespace crosshatch::checkpoint {
namespace {

absl::Status CannotMerge(const std::string& name, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "the parameters of tensor \"", name, "\" cannot be merged: ", why));
}

absl::Status Stack(MergedTensor& tensor) {
  tensor.sizes = tensor.parts[0].parameter->data().sizes();
  for (size_t i = 1; i < tensor.parts.size(); ++i) {
    const Tensor& first = tensor.parts[0].parameter->data();
    const Tensor& data = tensor.parts[i].parameter->data();
    const bool fits = data.ndim() > 0 && data.ndim() == first.ndim() &&
                      std::equal(data.sizes().begin() + 1, data.sizes().end(),
                                 first.sizes().begin() + 1);
    if (!fits || data.dtype() != first.dtype()) {
      return CannotMerge(
          tensor.name,
          absl::StrCat(tensor.parts[0].name, " is ", first.Describe(), " and ",
                       tensor.parts[i].name, " is ", data.Describe()));
    }
    tensor.sizes[0] += data.size(0);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StoredName> StoredNameOf(const std::string& parameter,
                                        const WeightNames& names) {
  for (const WeightRule& rule : names.rules) {
    std::vector<std::string> stars;
    if (!MatchesStars(rule.parameter, parameter, &stars)) continue;
    const std::vector<std::string> pieces = absl::StrSplit(rule.stored, '*');
    if (pieces.size() > stars.size() + 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the rule \"", rule.parameter, "\" -> \"", rule.stored,
          "\" has more stars in the stored name than in the parameter's"));
    }
    std::string name = pieces[0];
    for (size_t i = 1; i < pieces.size(); ++i) {
      absl::StrAppend(&name, stars[i - 1], pieces[i]);
    }
    return StoredName{std::move(name), rule.part, rule.transposed};
  }
  return StoredName{parameter};
}

bool MatchesStars(absl::string_view pattern, absl::string_view name,
                  std::vector<std::string>* stars) {
  const size_t star = pattern.find('*');
  if (star == absl::string_view::npos) return pattern == name;
  if (!absl::StartsWith(name, pattern.substr(0, star))) return false;
  const absl::string_view rest = pattern.substr(star + 1);
  name.remove_prefix(star);
  const size_t matched = stars == nullptr ? 0 : stars->size();
  for (size_t length = 0; length <= name.size(); ++length) {
    if (stars != nullptr) {
      stars->resize(matched);
      stars->emplace_back(name.substr(0, length));
    }
    if (MatchesStars(rest, name.substr(length), stars)) return true;
  }
  if (stars != nullptr) stars->resize(matched);
  return false;
}

WeightNames LlamaNames(nn::LlamaFamily family) {
  WeightNames names;
  if (family == nn::LlamaFamily::kPhi3) {
    const std::string at = "layers.*.self_attn.";
    const std::string mlp = "layers.*.mlp.";
    const auto merge = [&](const std::string& parameter,
                           const std::string& stored, int part) {
      names.rules.push_back({absl::StrCat(parameter, ".*"),
                             absl::StrCat("model.", stored, ".*"), part});
    };
    merge(at + "q_proj", at + "qkv_proj", 0);
    merge(at + "k_proj", at + "qkv_proj", 1);
    merge(at + "v_proj", at + "qkv_proj", 2);
    merge(mlp + "gate_proj", mlp + "gate_up_proj", 0);
    merge(mlp + "up_proj", mlp + "gate_up_proj", 1);
  }
  names.rules.push_back({"lm_head.*", "lm_head.*"});
  names.rules.push_back({"*", "model.*"});
  names.copies = {{"lm_head.weight", "model.embed_tokens.weight"}};
  // Old versions of transformers stored it, though it follows from the config.
  names.ignored = {"*.rotary_emb.inv_freq"};
  return names;
}

absl::StatusOr<std::vector<MergedTensor>> MergeByName(
    absl::Span<const nn::NamedParameter> parameters, const WeightNames& names) {
  std::vector<MergedTensor> tensors;
  std::map<std::string, size_t> index;
  for (const nn::NamedParameter& named : parameters) {
    CH_ASSIGN_OR_RETURN(const StoredName stored,
                        StoredNameOf(named.name, names));
    const auto [it, is_new] = index.emplace(stored.name, tensors.size());
    const bool transposed =
        stored.transposed && named.parameter->data().ndim() == 2;
    if (is_new) tensors.push_back({stored.name, {}, transposed, {}});
    if (tensors[it->second].transposed != transposed) {
      return CannotMerge(
          stored.name,
          absl::StrCat(named.name, transposed ? " is" : " is not",
                       " transposed, others are", transposed ? " not" : ""));
    }
    std::vector<nn::NamedParameter>& parts = tensors[it->second].parts;
    if (stored.part < 0 ||
        static_cast<size_t>(stored.part) >= parameters.size()) {
      return CannotMerge(
          stored.name, absl::StrCat(named.name, " is part ", stored.part,
                                    " of ", parameters.size(), " parameters"));
    }
    const auto part = static_cast<size_t>(stored.part);
    if (parts.size() <= part) parts.resize(part + 1, {"", nullptr});
    if (parts[part].parameter != nullptr) {
      return CannotMerge(stored.name,
                         absl::StrCat(parts[part].name, " and ", named.name,
                                      " are both part ", part));
    }
    parts[part] = named;
  }
  for (MergedTensor& tensor : tensors) {
    for (size_t i = 0; i < tensor.parts.size(); ++i) {
      if (tensor.parts[i].parameter == nullptr) {
        return CannotMerge(tensor.name,
                           absl::StrCat("no parameter is part ", i));
      }
    }
    CH_RETURN_IF_ERROR(Stack(tensor));
  }
  return tensors;
}

}  // namespace crosshatch::checkpoint
