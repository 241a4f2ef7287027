// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tp/check_flows.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/nn/flows.h"
#include "crosshatch/nn/name_pattern.h"
#include "crosshatch/tp/parallel_style.h"

namespace crosshatch::tp {
namespace {

using Modules = absl::Span<const StyledModule>;

std::string Described(const StyledModule& module) {
  const ParallelStyle* style = StyleOf(module);
  return absl::StrCat("module ", Quoted(module.named.name), " (",
                      style == nullptr ? "no style" : style->name(), ")");
}

// Whether a tensor that lies as `a` may lie as `b`, of any number of dims.
bool MayBeEqual(const Placement& a, const Placement& b) {
  const bool from_other_ends =
      a.is_shard() && b.is_shard() && (a.dim() < 0) != (b.dim() < 0);
  return from_other_ends || a == b;
}

const StyledModule* Find(Modules modules, const nn::Module* module) {
  for (const StyledModule& candidate : modules) {
    if (candidate.named.module == module) return &candidate;
  }
  return nullptr;
}

// `module` and those around it that are not around `other`, innermost first.
std::vector<const StyledModule*> AroundOneOnly(Modules modules,
                                               const StyledModule& module,
                                               const StyledModule& other) {
  std::vector<const StyledModule*> around = {&module};
  for (const nn::Module* above = module.named.module->parent();
       above != nullptr; above = above->parent()) {
    for (const nn::Module* of_other = other.named.module->parent();
         of_other != nullptr; of_other = of_other->parent()) {
      if (of_other == above) return around;
    }
    const StyledModule* found = Find(modules, above);
    if (found == nullptr) return around;
    around.push_back(found);
  }
  return around;
}

// Whether a style above spreads what is left below it.
bool IsSpreadFromAbove(const StyledModule& module, Modules modules) {
  for (const nn::Module* above = module.named.module->parent();
       above != nullptr; above = above->parent()) {
    const StyledModule* found = Find(modules, above);
    if (found == nullptr) continue;
    const ParallelStyle* style = StyleOf(*found);
    if (style != nullptr && style->SpreadsBelow()) return true;
  }
  return false;
}

// What leaves a module, and from which of those around it.
struct Given {
  const StyledModule* giver;
  HandedOut output;
};

// The outermost sees an output last.
std::optional<Given> GivenBy(Modules modules, const StyledModule& from,
                             const StyledModule& to) {
  std::optional<Given> given;
  for (const StyledModule* module : AroundOneOnly(modules, from, to)) {
    const ParallelStyle* style = StyleOf(*module);
    if (style == nullptr) continue;
    if (const auto output = style->FirstOutput(*module->named.module)) {
      given = Given{module, *output};
    }
  }
  return given;
}

// What takes an input, and as what; the outermost sees it first. What no style
// takes is taken as equal on all ranks where the rest is replicated.
struct Taken {
  const StyledModule* taker;
  Placement input;
};
std::optional<Taken> TakenBy(Modules modules, const StyledModule& from,
                             const StyledModule& to, bool replicate_rest) {
  std::optional<Taken> taken;
  for (const StyledModule* module : AroundOneOnly(modules, to, from)) {
    const ParallelStyle* style = StyleOf(*module);
    if (style == nullptr) continue;
    if (const auto input = style->PlainInput(*module->named.module)) {
      taken = Taken{module, *input};
    }
  }
  if (!taken.has_value() && replicate_rest && StyleOf(to) == nullptr &&
      HasPlainParameters(*to.named.module)) {
    taken = Taken{&to, Replicate()};
  }
  return taken;
}

absl::Status CheckPlain(Modules modules, const StyledModule& from,
                        const StyledModule& to, bool replicate_rest) {
  const std::optional<Given> given = GivenBy(modules, from, to);
  if (!given.has_value() || !given->output.plain) return absl::OkStatus();
  const std::optional<Taken> taken = TakenBy(modules, from, to, replicate_rest);
  if (!taken.has_value() || MayBeEqual(given->output.placement, taken->input)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "ParallelizeModule: ", Described(*given->giver),
      " hands out a plain tensor that lies as ",
      given->output.placement.ToString(), ", and ", Described(*taken->taker),
      ", which comes next, takes it as ", taken->input.ToString(),
      "; let one of them say what the other does, or leave "
      "out use_local_output"));
}

absl::Status CheckDistributed(Modules modules, const StyledModule& from,
                              const StyledModule& to) {
  const std::optional<Given> given = GivenBy(modules, from, to);
  if (!given.has_value() || given->output.plain || StyleOf(to) != nullptr ||
      TakenBy(modules, from, to, /*replicate_rest=*/false).has_value() ||
      !HasPlainParameters(*to.named.module) || IsSpreadFromAbove(to, modules)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "ParallelizeModule: ", Described(*given->giver),
      " hands out a distributed tensor (", given->output.placement.ToString(),
      ") and ", Described(to),
      ", which comes next, has plain parameters; give it a style, or "
      "replicate the rest (ParallelizeOptions::replicate_rest)"));
}

absl::StatusOr<std::vector<const StyledModule*>> Matching(
    Modules modules, const std::string& pattern) {
  std::vector<const StyledModule*> matching;
  for (const StyledModule& module : modules) {
    if (nn::MatchesName(pattern, module.named.name)) {
      matching.push_back(&module);
    }
  }
  if (matching.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("ParallelizeModule: the pattern ", Quoted(pattern),
                     " of a flow matches no module"));
  }
  return matching;
}

// What `from` is given on the way to `to` that it hands on as it lies: where it
// is Elementwise, and no style touches what goes into it or comes out of it,
// what comes before it among `flows`; else `from` itself.
const StyledModule& SourceOf(Modules modules,
                             const std::vector<nn::Flow>& flows,
                             const StyledModule& from, const StyledModule& to,
                             bool replicate_rest) {
  const StyledModule* source = &from;
  for (size_t i = 0; i < flows.size(); ++i) {
    if (dynamic_cast<const nn::Elementwise*>(source->named.module) == nullptr ||
        GivenBy(modules, *source, to).has_value()) {
      break;
    }
    const auto before = std::find_if(
        flows.begin(), flows.end(),
        [&](const nn::Flow& flow) { return flow.to == source->named.module; });
    const StyledModule* giver =
        before == flows.end() ? nullptr : Find(modules, before->from);
    if (giver == nullptr ||
        TakenBy(modules, *giver, *source, replicate_rest).has_value()) {
      break;
    }
    source = giver;
  }
  return *source;
}

absl::Status CheckTold(Modules modules, bool replicate_rest) {
  for (const StyledModule& module : modules) {
    const auto* teller =
        dynamic_cast<const nn::TellsFlows*>(module.named.module);
    if (teller == nullptr) continue;
    const std::vector<nn::Flow> flows = teller->flows();
    for (const nn::Flow& flow : flows) {
      const StyledModule* from = Find(modules, flow.from);
      const StyledModule* to = Find(modules, flow.to);
      if (from == nullptr || to == nullptr) continue;
      const StyledModule& source =
          SourceOf(modules, flows, *from, *to, replicate_rest);
      CH_RETURN_IF_ERROR(CheckPlain(modules, source, *to, replicate_rest));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckFlows(
    Modules modules,
    const std::vector<std::pair<std::string, std::string>>& flows,
    bool replicate_rest) {
  for (const auto& [from, to] : flows) {
    CH_ASSIGN_OR_RETURN(const std::vector<const StyledModule*> givers,
                        Matching(modules, from));
    CH_ASSIGN_OR_RETURN(const std::vector<const StyledModule*> takers,
                        Matching(modules, to));
    const size_t count = std::max(givers.size(), takers.size());
    if (std::min(givers.size(), takers.size()) != count && givers.size() != 1 &&
        takers.size() != 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "ParallelizeModule: in the flow from ", Quoted(from), " to ",
          Quoted(to), " ", givers.size(), " modules stand before ",
          takers.size(), "; they go in pairs, or one of them with all"));
    }
    for (size_t i = 0; i < count; ++i) {
      const StyledModule& giver = *givers[givers.size() == 1 ? 0 : i];
      const StyledModule& taker = *takers[takers.size() == 1 ? 0 : i];
      CH_RETURN_IF_ERROR(CheckPlain(modules, giver, taker, replicate_rest));
      if (replicate_rest) continue;
      CH_RETURN_IF_ERROR(CheckDistributed(modules, giver, taker));
    }
  }
  return CheckTold(modules, replicate_rest);
}

}  // namespace crosshatch::tp
