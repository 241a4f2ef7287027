// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/report.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "crosshatch/dtensor/dtensor.h"

namespace crosshatch::examples {
namespace {

// Returns the kind of a name: "layers.3.mlp.up_proj.weight" gives
// "layers.*.mlp.up_proj.weight".
std::string KindOf(const std::string& name) {
  std::vector<std::string> parts = absl::StrSplit(name, '.');
  for (std::string& part : parts) {
    int number = 0;
    if (absl::SimpleAtoi(part, &number)) part.assign(1, '*');
  }
  return absl::StrJoin(parts, ".");
}

std::string LayoutText(const Tensor& tensor) {
  return tensor.is_distributed() ? LayoutOf(tensor).ToString() : "plain";
}

std::string MinutesAndSeconds(absl::Duration duration) {
  const int64_t seconds = absl::ToInt64Seconds(duration);
  char text[32];
  std::snprintf(text, sizeof(text), "%d:%02d", static_cast<int>(seconds / 60),
                static_cast<int>(seconds % 60));
  return text;
}

}  // namespace

std::vector<ParameterKind> ParameterKinds(nn::Module& model) {
  std::vector<ParameterKind> kinds;
  for (const nn::NamedParameter& named : model.NamedParameters()) {
    const Tensor& data = named.parameter->data();
    const std::string name = KindOf(named.name);
    const std::string layout = LayoutText(data);
    auto kind =
        std::find_if(kinds.begin(), kinds.end(), [&](const ParameterKind& k) {
          return k.name == name && k.layout == layout &&
                 k.sizes == data.sizes();
        });
    if (kind == kinds.end()) {
      kind = kinds.insert(
          kind, {name, layout, Shape(data.sizes()), 0, named.parameter});
    }
    ++kind->count;
  }
  return kinds;
}

std::string FormatBytes(int64_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.1f %s", value,
                units[unit]);
  return text;
}

std::string FormatCount(int64_t count) {
  const std::string digits = absl::StrCat(count);
  std::string grouped;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) grouped.push_back(',');
    grouped.push_back(digits[i]);
  }
  return grouped;
}

void Report::Start(const DeviceMesh& mesh, nn::Module& model) {
  begin_ = last_line_ = absl::Now();
  if (!reports_) return;
  const std::vector<ParameterKind> kinds = ParameterKinds(model);
  int64_t total = 0;
  size_t name_width = 0;
  size_t shape_width = 0;
  for (const ParameterKind& kind : kinds) {
    total += kind.count * NumElements(kind.sizes);
    name_width = std::max(name_width, kind.name.size());
    shape_width = std::max(shape_width, ToString(kind.sizes).size());
  }
  std::printf("%s, %s parameters\n", mesh.ToString().c_str(),
              FormatCount(total).c_str());
  std::printf("shardings over [%s]:\n",
              absl::StrJoin(mesh.axis_names(), ", ").c_str());
  for (const ParameterKind& kind : kinds) {
    std::printf("  %-*s  %-*s  x%-3d  %s\n", static_cast<int>(name_width),
                kind.name.c_str(), static_cast<int>(shape_width),
                ToString(kind.sizes).c_str(), kind.count, kind.layout.c_str());
  }
  std::fflush(stdout);
}

void Report::Note(const std::string& text) {
  if (reports_) std::printf("note: %s\n", text.c_str());
}

void Report::Plan(const std::string& plan) {
  if (!reports_) return;
  std::printf("groups:\n%s", plan.c_str());
}

void Report::Step(const StepMetrics& metrics) {
  if (!first_loss_.has_value()) first_loss_ = metrics.loss;
  last_ = metrics;
  if (!reports_ || !metrics.loss.has_value()) return;
  const absl::Time now = absl::Now();
  if (metrics.step != before_ + 1 && metrics.step != steps_ &&
      !metrics.eval_loss && now - last_line_ < absl::Seconds(1)) {
    return;
  }
  last_line_ = now;
  const absl::Duration left =
      (now - begin_) / (metrics.step - before_) * (steps_ - metrics.step);
  std::printf(
      "step %lld/%lld  loss %.4f  norm %.3f  %s tokens/s  memory %s  left "
      "%s%s\n",
      static_cast<long long>(metrics.step), static_cast<long long>(steps_),
      *metrics.loss, metrics.grad_norm.value_or(0),
      FormatCount(static_cast<int64_t>(metrics.tokens_per_s)).c_str(),
      FormatBytes(metrics.memory.peak_total).c_str(),
      MinutesAndSeconds(left).c_str(),
      metrics.eval_loss.has_value()
          ? absl::StrFormat("  eval loss %.4f", *metrics.eval_loss).c_str()
          : "");
  std::fflush(stdout);
}

void Report::PrintTraffic() const {
  std::printf("received by this rank per step:\n");
  for (const auto& [axis, by_kind] : last_->traffic) {
    for (const auto& [kind, count] : by_kind) {
      std::printf("  %-16s %-15s %4lld calls  %s\n", axis.c_str(), kind.c_str(),
                  static_cast<long long>(count.calls),
                  FormatBytes(count.bytes).c_str());
    }
  }
  if (last_->traffic.empty()) std::printf("  nothing\n");
  std::printf("peak memory of this rank:\n");
  for (int i = 0; i < kNumMemoryClasses; ++i) {
    std::printf(
        "  %-19s %s\n", Name(static_cast<MemoryClass>(i)),
        FormatBytes(last_->memory.peak[static_cast<size_t>(i)]).c_str());
  }
  std::printf("  %-19s %s\n", "total",
              FormatBytes(last_->memory.peak_total).c_str());
}

void Report::Saved(absl::Duration blocked) {
  ++saves_;
  all_saves_ += blocked;
  longest_save_ = std::max(longest_save_, blocked);
}

void Report::PrintSaves() const {
  if (saves_ == 0 || !last_.has_value()) return;
  std::printf(
      "saved %d checkpoint%s: each blocked training for %.1f ms, at most %.1f "
      "ms; a step took %.1f ms\n",
      saves_, saves_ == 1 ? "" : "s",
      absl::ToDoubleMilliseconds(all_saves_ / saves_),
      absl::ToDoubleMilliseconds(longest_save_), last_->step_ms);
}

void Report::Warn(const std::string& text) {
  if (reports_) std::fprintf(stderr, "train_lm: %s\n", text.c_str());
}

void Report::Sample(const std::string& text) {
  if (!reports_) return;
  std::printf("sample: ");
  // Tokens may be zero bytes.
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::printf("\n");
}

void Report::Finish(const std::string& save_dir) {
  if (!reports_) return;
  if (last_.has_value()) PrintTraffic();
  if (last_.has_value() && last_->loss.has_value()) {
    std::printf("trained %lld steps in %s: loss %.4f -> %.4f\n",
                static_cast<long long>(last_->step - before_),
                MinutesAndSeconds(absl::Now() - begin_).c_str(), *first_loss_,
                *last_->loss);
  }
  PrintSaves();
  if (!save_dir.empty()) std::printf("saved to %s\n", save_dir.c_str());
  std::fflush(stdout);
}

}  // namespace crosshatch::examples
