// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tp/plan_text.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/layout/placement.h"
#include "crosshatch/tp/parallel_style.h"

namespace crosshatch::tp {
namespace {

enum class Kind { kLayout, kDim, kCount, kFlag };

struct OptionInfo {
  const char* name;
  Kind kind;
  bool is_required = false;
};

/// The options of a line, checked against those of the style.
class Options {
 public:
  void Set(const std::string& name, Placement layout) {
    layouts_[name] = layout;
  }
  void Set(const std::string& name, int64_t number) { numbers_[name] = number; }
  void Set(const std::string& name) { flags_.insert(name); }

  Placement Layout(const char* name, Placement otherwise) const {
    const auto found = layouts_.find(name);
    return found == layouts_.end() ? otherwise : found->second;
  }
  std::optional<Placement> Layout(const char* name) const {
    const auto found = layouts_.find(name);
    if (found == layouts_.end()) return std::nullopt;
    return found->second;
  }
  int64_t Number(const char* name, int64_t otherwise) const {
    const auto found = numbers_.find(name);
    return found == numbers_.end() ? otherwise : found->second;
  }
  bool Flag(const char* name) const { return flags_.count(name) > 0; }
  bool Has(const std::string& name) const {
    return layouts_.count(name) + numbers_.count(name) + flags_.count(name) > 0;
  }

 private:
  std::map<std::string, Placement> layouts_;
  std::map<std::string, int64_t> numbers_;
  std::set<std::string> flags_;
};

struct StyleInfo {
  const char* name;
  std::vector<OptionInfo> options;
  std::function<Style(const Options&)> make;
};

/// The styles that a plan's text can name, with their options.
const std::vector<StyleInfo>& Styles() {
  static const auto* const styles = new std::vector<StyleInfo>{
      {"ColwiseParallel",
       {{"input", Kind::kLayout},
        {"output", Kind::kLayout},
        {"use_local_output", Kind::kFlag},
        {"unit", Kind::kCount},
        {"subunit", Kind::kCount},
        {"query_heads", Kind::kCount}},
       [](const Options& o) {
         return ColwiseParallel({.input = o.Layout("input", Replicate()),
                                 .output = o.Layout("output", Shard(-1)),
                                 .use_local_output = o.Flag("use_local_output"),
                                 .unit = o.Number("unit", 1),
                                 .subunit = o.Number("subunit", 0),
                                 .query_heads = o.Number("query_heads", 0)});
       }},
      {"RowwiseParallel",
       {{"input", Kind::kLayout},
        {"output", Kind::kLayout},
        {"use_local_output", Kind::kFlag},
        {"unit", Kind::kCount},
        {"subunit", Kind::kCount}},
       [](const Options& o) {
         return RowwiseParallel({.input = o.Layout("input"),
                                 .output = o.Layout("output", Replicate()),
                                 .use_local_output = o.Flag("use_local_output"),
                                 .unit = o.Number("unit", 1),
                                 .subunit = o.Number("subunit", 0)});
       }},
      {"SequenceParallel",
       {{"sequence_dim", Kind::kDim}, {"use_local_output", Kind::kFlag}},
       [](const Options& o) {
         return SequenceParallel(static_cast<int>(o.Number("sequence_dim", 1)),
                                 o.Flag("use_local_output"));
       }},
      {"ReplicateParallel",
       {{"use_local_output", Kind::kFlag}},
       [](const Options& o) {
         return ReplicateParallel(
             {.use_local_output = o.Flag("use_local_output")});
       }},
      {"PrepareModuleInput",
       {{"input", Kind::kLayout, true}, {"desired", Kind::kLayout, true}},
       [](const Options& o) {
         return PrepareModuleInput(
             {.input = o.Layout("input", Replicate()),
              .desired = o.Layout("desired", Replicate())});
       }},
      {"PrepareModuleOutput",
       {{"output", Kind::kLayout, true},
        {"desired", Kind::kLayout, true},
        {"use_local_output", Kind::kFlag}},
       [](const Options& o) {
         return PrepareModuleOutput(
             {.output = o.Layout("output", Replicate()),
              .desired = o.Layout("desired", Replicate()),
              .use_local_output = o.Flag("use_local_output")});
       }},
      // Inputs and outputs both have a `desired`, so the names have a prefix.
      {"PrepareModuleInputOutput",
       {{"input", Kind::kLayout, true},
        {"desired_input", Kind::kLayout, true},
        {"output", Kind::kLayout, true},
        {"desired_output", Kind::kLayout, true},
        {"use_local_output", Kind::kFlag}},
       [](const Options& o) {
         return PrepareModuleInputOutput(
             {.inputs = {.input = o.Layout("input", Replicate()),
                         .desired = o.Layout("desired_input", Replicate())},
              .outputs = {.output = o.Layout("output", Replicate()),
                          .desired = o.Layout("desired_output", Replicate()),
                          .use_local_output = o.Flag("use_local_output")}});
       }},
  };
  return *styles;
}

std::string FormOf(const OptionInfo& option) {
  switch (option.kind) {
    case Kind::kLayout:
      return absl::StrCat(option.name, "=LAYOUT");
    case Kind::kDim:
      return absl::StrCat(option.name, "=DIM");
    case Kind::kCount:
      return absl::StrCat(option.name, "=COUNT");
    case Kind::kFlag:
      return option.name;
  }
  return "";
}

std::string FormsOf(const StyleInfo& style) {
  return absl::StrJoin(
      style.options, " ", [](std::string* out, const OptionInfo& option) {
        absl::StrAppend(out, option.is_required ? "" : "[", FormOf(option),
                        option.is_required ? "" : "]");
      });
}

/// Parses `word`, "name=value" or "name", into `options`.
absl::Status ReadOption(const StyleInfo& style, absl::string_view word,
                        int most_dims, Options& options) {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(word, absl::MaxSplits('=', 1));
  const auto& [name, value] = parts;
  const bool has_value = word.find('=') != absl::string_view::npos;
  const auto found = std::find_if(
      style.options.begin(), style.options.end(),
      [&name = name](const OptionInfo& option) { return name == option.name; });
  if (found == style.options.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(style.name, " has no option \"", name,
                     "\"; it takes: ", FormsOf(style)));
  }
  if (options.Has(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the option ", name, " comes twice"));
  }
  const auto refused = [&] {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", word, "\" is not ", FormOf(*found),
        found->kind == Kind::kLayout ? ", with a layout R, S(dim) or P(op)"
                                     : ""));
  };
  const auto check_dim = [&, word](int dim) {
    if (most_dims == 0 || (dim >= -most_dims && dim < most_dims)) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("\"", word, "\": activations have at most ", most_dims,
                     " dims, 0 to ", most_dims - 1, " or -1 to ", -most_dims));
  };
  if (has_value != (found->kind != Kind::kFlag)) return refused();
  if (found->kind == Kind::kFlag) {
    options.Set(name);
    return absl::OkStatus();
  }
  if (found->kind == Kind::kDim) {
    int dim = 0;
    if (!absl::SimpleAtoi(value, &dim)) return refused();
    options.Set(name, dim);
    return check_dim(dim);
  }
  if (found->kind == Kind::kCount) {
    int64_t count = 0;
    if (!absl::SimpleAtoi(value, &count) || count < 1) return refused();
    options.Set(name, count);
    return absl::OkStatus();
  }
  const absl::StatusOr<Placement> layout = Placement::Parse(value);
  // A plan has one axis, so a layout has no other axis to be strided by.
  if (!layout.ok() || layout->kind() == Placement::Kind::kStridedShard) {
    return refused();
  }
  options.Set(name, *layout);
  return layout->is_shard() ? check_dim(layout->dim()) : absl::OkStatus();
}

absl::StatusOr<std::pair<std::string, Style>> ReadLine(
    const std::vector<std::string>& words, int most_dims) {
  if (words.size() == 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", words[0],
                     "\" has no style; a line is PATTERN STYLE "
                     "[option=layout ...]"));
  }
  const std::vector<StyleInfo>& styles = Styles();
  const auto style =
      std::find_if(styles.begin(), styles.end(),
                   [&](const StyleInfo& s) { return words[1] == s.name; });
  if (style == styles.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "there is no style \"", words[1], "\"; there are ",
        absl::StrJoin(styles, ", ", [](std::string* out, const StyleInfo& s) {
          absl::StrAppend(out, s.name);
        })));
  }
  Options options;
  for (size_t i = 2; i < words.size(); ++i) {
    CH_RETURN_IF_ERROR(ReadOption(*style, words[i], most_dims, options));
  }
  for (const OptionInfo& option : style->options) {
    if (!option.is_required || options.Has(option.name)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        style->name, " lacks ", option.name, "; it takes: ", FormsOf(*style)));
  }
  return std::pair(words[0] == "." ? std::string() : words[0],
                   style->make(options));
}

}  // namespace

absl::StatusOr<ParallelPlan> ParsePlan(absl::string_view text,
                                       const std::string& name, int most_dims) {
  ParallelPlan plan;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    const absl::string_view said = line.substr(0, line.find('#'));
    const std::vector<std::string> words =
        absl::StrSplit(said, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    absl::StatusOr<std::pair<std::string, Style>> entry =
        ReadLine(words, most_dims);
    if (!entry.ok()) {
      return absl::Status(entry.status().code(),
                          absl::StrCat(name, ", line ", number, ": ",
                                       std::string(entry.status().message())));
    }
    plan.push_back(*std::move(entry));
  }
  if (plan.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": holds no plan; a line is PATTERN STYLE [option=layout ...]"));
  }
  return plan;
}

std::vector<std::string> PlanStyles() {
  std::vector<std::string> lines;
  for (const StyleInfo& style : Styles()) {
    lines.push_back(absl::StrCat(style.name, " ", FormsOf(style)));
  }
  return lines;
}

}  // namespace crosshatch::tp
