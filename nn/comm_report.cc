// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/comm_report.h"

#include <limits>
#include <memory>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {
namespace {

// Bounds the list for a program that only runs forward.
constexpr size_t kMaxCalls = 1 << 14;

// A node whose only purpose is its sequence number.
class Marker final : public Node {
 public:
  const char* name() const override { return "comm_report"; }
  void Backward(TensorSpan, GradientSlots&) override {}
  void ReleaseSaved() override {}
};

uint64_t Now() {
  const auto marker = std::make_shared<Marker>();
  GraphTies::Number(*marker);
  return marker->sequence();
}

void Add(CommCount& sum, const CommCount& count) {
  sum.collectives += count.collectives;
  sum.bytes += count.bytes;
}

auto KeyOf(const CommEntry& e) {
  return std::tie(e.module, e.backward, e.origin, e.cause, e.collective,
                  e.group);
}

std::string Text(const CommCount& count) {
  return absl::StrCat(
      count.collectives,
      count.collectives == 1 ? " collective, " : " collectives, ", count.bytes,
      " bytes");
}

std::string Text(const CommEntry& e) {
  return absl::StrCat("  ", e.backward ? "backward  " : "forward   ",
                      Name(e.origin), " ", e.cause, ": ", e.collective,
                      " over ", e.group, ": ", Text(e.count), "\n");
}

}  // namespace

CommReport::CommReport(Module& root)
    : next_(RankContext::Current().sink()), modules_(root.NamedModules()) {
  for (size_t i = 0; i < modules_.size(); ++i) {
    Module& module = *modules_[i].module;
    lives_.push_back(module.life());
    hooks_.emplace_back(
        module.AddPreHook([this, i](Module&, TensorList&) { Enter(i); },
                          /*first=*/true),
        module.AddPostHook(
            [this](Module&, TensorSpan, TensorList&) { Leave(); }));
  }
  RankContext::Current().set_sink(this);
}

CommReport::~CommReport() {
  RankContext& context = RankContext::Current();
  CH_CHECK(context.sink() == this)
      << "a CommReport ends before one that was made after it";
  CH_CHECK(under_way_.empty()) << "a CommReport ends while a module runs";
  context.set_sink(next_);
  for (size_t i = 0; i < modules_.size(); ++i) {
    if (lives_[i]->module == nullptr) continue;
    modules_[i].module->RemoveHook(hooks_[i].first);
    modules_[i].module->RemoveHook(hooks_[i].second);
  }
}

void CommReport::Enter(size_t module) {
  if (under_way_.empty() && calls_.size() > kMaxCalls) {
    calls_.erase(calls_.begin(), calls_.begin() + kMaxCalls / 2);
  }
  under_way_.push_back(calls_.size());
  calls_.push_back({.begin = Now(),
                    .end = std::numeric_limits<uint64_t>::max(),
                    .module = module});
}

void CommReport::Leave() {
  // The report was created during the call, after its start.
  if (under_way_.empty()) return;
  calls_[under_way_.back()].end = Now();
  under_way_.pop_back();
}

std::optional<size_t> CommReport::ModuleOfNode(uint64_t sequence) const {
  // The innermost call around a node is the last one that began.
  for (size_t i = calls_.size(); i-- > 0;) {
    if (calls_[i].begin < sequence && sequence < calls_[i].end) {
      return calls_[i].module;
    }
  }
  return std::nullopt;
}

std::optional<size_t> CommReport::ModuleOfLeaf(const Node& leaf) const {
  for (size_t i = 0; i < modules_.size(); ++i) {
    if (lives_[i]->module == nullptr) continue;
    for (const auto& [name, parameter] : modules_[i].module->own_parameters()) {
      const Tensor& tensor = parameter->Get();
      if (tensor.requires_grad() && GradEdge(tensor).node.get() == &leaf) {
        return i;
      }
    }
  }
  return std::nullopt;
}

CommEntry CommReport::EntryOf(const LogEvent& event) const {
  const CommOrigin origin = CurrentCommOrigin();
  CommEntry entry = {
      .origin = origin.kind,
      .cause = origin.op == nullptr ? *event.subject : std::string(origin.op),
      .collective = event.what,
      .group = event.where == nullptr ? std::string() : *event.where,
      .count = {.collectives = 1, .bytes = event.bytes}};
  const Node* const node = RunningNode();
  entry.backward = node != nullptr;
  std::optional<size_t> module;
  if (!under_way_.empty()) {
    module = calls_[under_way_.back()].module;
  } else if (node != nullptr) {
    module = node->sequence() == GraphTies::kLeafSequence
                 ? ModuleOfLeaf(*node)
                 : ModuleOfNode(node->sequence());
  }
  if (module.has_value()) entry.module = modules_[*module].name;
  return entry;
}

void CommReport::Write(const LogEvent& event) {
  if (event.kind == EventKind::kCollective) {
    const CommEntry entry = EntryOf(event);
    bool found = false;
    for (CommEntry& known : entries_) {
      if (KeyOf(known) != KeyOf(entry)) continue;
      Add(known.count, entry.count);
      found = true;
      break;
    }
    if (!found) entries_.push_back(entry);
  }
  if (next_ != nullptr) next_->Write(event);
}

CommCount CommReport::Total() const {
  CommCount sum;
  for (const CommEntry& entry : entries_) Add(sum, entry.count);
  return sum;
}

CommCount CommReport::InModule(const std::string& name) const {
  CommCount sum;
  for (const CommEntry& entry : entries_) {
    if (!entry.module.has_value()) continue;
    if (name.empty() || *entry.module == name ||
        absl::StartsWith(*entry.module, name + ".")) {
      Add(sum, entry.count);
    }
  }
  return sum;
}

std::map<std::string, CommCount> CommReport::ByCause() const {
  std::map<std::string, CommCount> sums;
  for (const CommEntry& entry : entries_) Add(sums[entry.cause], entry.count);
  return sums;
}

std::map<std::string, CommCount> CommReport::ByCollective() const {
  std::map<std::string, CommCount> sums;
  for (const CommEntry& entry : entries_) {
    Add(sums[entry.collective], entry.count);
  }
  return sums;
}

std::string CommReport::ToString() const {
  std::string text = absl::StrCat(Text(Total()), "\n");
  for (const NamedModule& module : modules_) {
    const CommCount count = InModule(module.name);
    if (count.collectives == 0) continue;
    absl::StrAppend(&text, module.name.empty() ? "(root)" : module.name, ": ",
                    Text(count), "\n");
    for (const CommEntry& entry : entries_) {
      if (entry.module == module.name) text += Text(entry);
    }
  }
  CommCount outside;
  std::string lines;
  for (const CommEntry& entry : entries_) {
    if (entry.module.has_value()) continue;
    Add(outside, entry.count);
    lines += Text(entry);
  }
  if (outside.collectives > 0) {
    absl::StrAppend(&text, "(outside): ", Text(outside), "\n", lines);
  }
  return text;
}

}  // namespace crosshatch::nn
