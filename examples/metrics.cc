// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/metrics.h"

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"

namespace crosshatch::examples {

Traffic TotalTraffic(const World& world) {
  Traffic traffic;
  for (const auto& group : world.groups()) {
    const CommunicatorStats& stats = group->stats();
    for (size_t kind = 0; kind < std::size(stats.by_kind); ++kind) {
      const CommunicatorStats::Count& count = stats.by_kind[kind];
      if (count.calls == 0) continue;
      CommunicatorStats::Count& total =
          traffic[group->name()][Name(static_cast<CollectiveKind>(kind))];
      total.calls += count.calls;
      total.bytes += count.bytes;
    }
  }
  return traffic;
}

Traffic Difference(const Traffic& later, const Traffic& earlier) {
  Traffic difference;
  for (const auto& [axis, by_kind] : later) {
    for (const auto& [kind, count] : by_kind) {
      CommunicatorStats::Count since = count;
      if (const auto a = earlier.find(axis); a != earlier.end()) {
        if (const auto k = a->second.find(kind); k != a->second.end()) {
          since.calls -= k->second.calls;
          since.bytes -= k->second.bytes;
        }
      }
      if (since.calls != 0) difference[axis][kind] = since;
    }
  }
  return difference;
}

std::string ToJson(const StepMetrics& metrics, int rank) {
  using Json = nlohmann::ordered_json;
  const auto optional = [](const std::optional<double>& value) {
    return value.has_value() ? Json(*value) : Json(nullptr);
  };
  Json peaks = Json::object();
  for (int i = 0; i < kNumMemoryClasses; ++i) {
    peaks[Name(static_cast<MemoryClass>(i))] =
        metrics.memory.peak[static_cast<size_t>(i)];
  }
  peaks["total"] = metrics.memory.peak_total;
  Json moved = Json::object();
  for (const auto& [axis, by_kind] : metrics.traffic) {
    for (const auto& [kind, count] : by_kind) {
      moved[axis][kind] = {{"calls", count.calls}, {"bytes", count.bytes}};
    }
  }
  Json line;
  line["step"] = metrics.step;
  line["loss"] = optional(metrics.loss);
  line["grad_norm"] = optional(metrics.grad_norm);
  line["tokens_per_s"] = metrics.tokens_per_s;
  line["step_ms"] = metrics.step_ms;
  line["rank"] = rank;
  line["peak_bytes"] = std::move(peaks);
  line["copied_bytes"] = metrics.copied_bytes;
  line["moved"] = std::move(moved);
  return line.dump();
}

absl::StatusOr<MetricsFile> MetricsFile::Open(const std::string& path) {
  MetricsFile metrics(path);
  if (path.empty()) return metrics;
  errno = 0;
  metrics.file_.open(path, std::ios::trunc);
  if (!metrics.file_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--metrics: cannot write ", path, ": ", std::strerror(errno)));
  }
  return metrics;
}

absl::Status MetricsFile::Write(const StepMetrics& metrics, int rank) {
  if (!file_.is_open()) return absl::OkStatus();
  errno = 0;
  // A line a write, so that a reader at any time finds whole lines.
  file_ << ToJson(metrics, rank) + "\n" << std::flush;
  if (!file_) {
    return absl::InternalError(absl::StrCat("--metrics: cannot write ", path_,
                                            ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace crosshatch::examples
