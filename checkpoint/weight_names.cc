// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/weight_names.h"

#include <algorithm>
#include <limits>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "crosshatch/base/status_macros.h"

namespace crosshatch::checkpoint {
namespace {

absl::Status CannotMerge(const std::string& name, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("the parts of tensor \"", name,
                                                 "\" cannot be merged: ", why));
}

/// Sets the sizes of a tensor whose parts are known.
absl::Status Stack(absl::Span<const NamedWeight> weights,
                   Merged<size_t>& tensor) {
  const NamedWeight& first = weights[tensor.parts[0]];
  const auto describe = [](const NamedWeight& weight) {
    return absl::StrCat(weight.name, " is ", Name(weight.dtype),
                        ToString(weight.sizes));
  };
  tensor.sizes = first.sizes;
  for (const size_t index : absl::MakeConstSpan(tensor.parts).subspan(1)) {
    const NamedWeight& part = weights[index];
    const bool fits = !first.sizes.empty() && !part.sizes.empty() &&
                      std::equal(part.sizes.begin() + 1, part.sizes.end(),
                                 first.sizes.begin() + 1, first.sizes.end());
    if (!fits || part.dtype != first.dtype) {
      return CannotMerge(
          tensor.name, absl::StrCat(describe(first), " and ", describe(part)));
    }
    tensor.sizes[0] += part.sizes[0];
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
    StoredName stored{std::move(name), rule.part, rule.transposed};
    for (const WeightRule& other : names.rules) {
      if (other.stored != rule.stored) continue;
      stored.num_parts = std::max(stored.num_parts, other.part + 1);
    }
    return stored;
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

absl::StatusOr<std::vector<Merged<size_t>>> MergeWeights(
    absl::Span<const NamedWeight> weights, const WeightNames& names) {
  constexpr size_t kNone = std::numeric_limits<size_t>::max();
  std::vector<Merged<size_t>> tensors;
  std::vector<size_t> num_parts;
  std::map<std::string, size_t> index;
  for (size_t i = 0; i < weights.size(); ++i) {
    const NamedWeight& weight = weights[i];
    CH_ASSIGN_OR_RETURN(const StoredName stored,
                        StoredNameOf(weight.name, names));
    const auto [it, is_new] = index.emplace(stored.name, tensors.size());
    const bool transposed = stored.transposed && weight.sizes.size() == 2;
    if (is_new) {
      tensors.push_back({stored.name, {}, transposed, {}});
      num_parts.push_back(static_cast<size_t>(stored.num_parts));
    }
    if (tensors[it->second].transposed != transposed) {
      return CannotMerge(
          stored.name,
          absl::StrCat(weight.name, transposed ? " is" : " is not",
                       " transposed, others are", transposed ? " not" : ""));
    }
    std::vector<size_t>& parts = tensors[it->second].parts;
    const auto part = static_cast<size_t>(stored.part);
    // The parts of a tensor have rules of their own.
    const size_t most = std::max<size_t>(1, names.rules.size());
    if (stored.part < 0 || part >= most) {
      return CannotMerge(
          stored.name,
          absl::StrCat(weight.name, " is part ", stored.part,
                       ", must be below ", most, ", the number of rules"));
    }
    if (parts.size() <= part) parts.resize(part + 1, kNone);
    if (parts[part] != kNone) {
      return CannotMerge(stored.name,
                         absl::StrCat(weights[parts[part]].name, " and ",
                                      weight.name, " are both part ", part));
    }
    parts[part] = i;
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<size_t>& parts = tensors[i].parts;
    const auto missing = static_cast<size_t>(
        std::find(parts.begin(), parts.end(), kNone) - parts.begin());
    if (missing < std::max(parts.size(), num_parts[i])) {
      return CannotMerge(tensors[i].name,
                         absl::StrCat("no tensor is part ", missing));
    }
    CH_RETURN_IF_ERROR(Stack(weights, tensors[i]));
  }
  return tensors;
}

absl::StatusOr<std::vector<MergedTensor>> MergeByName(
    absl::Span<const nn::NamedParameter> parameters, const WeightNames& names) {
  std::vector<NamedWeight> weights;
  for (const nn::NamedParameter& named : parameters) {
    const Tensor& data = named.parameter->data();
    weights.push_back({named.name, data.dtype(), data.sizes()});
  }
  CH_ASSIGN_OR_RETURN(const std::vector<Merged<size_t>> merged,
                      MergeWeights(weights, names));
  std::vector<MergedTensor> tensors;
  for (const Merged<size_t>& from : merged) {
    MergedTensor& to = tensors.emplace_back(
        MergedTensor{from.name, from.sizes, from.transposed, {}});
    for (const size_t part : from.parts) to.parts.push_back(parameters[part]);
  }
  return tensors;
}

}  // namespace crosshatch::checkpoint
